"""Imports gRPC, with the settings that gRPC reads when it is imported.

gRPC's own handlers for ``fork()`` fail while a call is running, as a poll always is, and then crash the child.  A child
that does not use gRPC does not need them, and `heliograph_drivers.pubsub.longpoll.process` makes sure that it does not.
So they are switched off.  In a program that has imported gRPC earlier this is too late; it gets a warning when it
forks.
"""

from __future__ import annotations

import os
import sys

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

MAY_CRASH_CHILDREN = "grpc" in sys.modules and os.environ.get(_FORK_SUPPORT) != "0"
"""Whether the program has imported gRPC already, with its handlers for fork()."""
os.environ.setdefault(_FORK_SUPPORT, "0")
# gRPC would write to standard error, past Python's logging; the driver logs and reports the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: E402 - not before the environment is set
from grpc import aio  # noqa: E402

__all__ = ["MAY_CRASH_CHILDREN", "aio", "grpc"]
