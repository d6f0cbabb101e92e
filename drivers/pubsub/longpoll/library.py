"""gRPC, imported in one place, with the settings that it reads when it is imported.

gRPC's own handlers for ``fork()`` give up when a call is under way, as a poll always is, and then crash the child.  A
child that leaves gRPC alone, as `heliograph_drivers.pubsub.longpoll.process` sees to, needs none, so they are switched
off.  That is too late in a program that has imported gRPC before, which is told when it forks.
"""

from __future__ import annotations

import os
import sys

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

MAY_CRASH_CHILDREN = "grpc" in sys.modules and os.environ.get(_FORK_SUPPORT) != "0"
"""The program has imported gRPC already, and its handlers for fork() are in place."""
os.environ.setdefault(_FORK_SUPPORT, "0")
# What gRPC writes to the standard error, past Python's logging, the driver says in its own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: E402 - not before the environment is set
from grpc import aio  # noqa: E402

__all__ = ["MAY_CRASH_CHILDREN", "aio", "grpc"]
