"""Where the rows of a write go: a durable log, a database, or the bus.  Each lets a micro-batch take effect once.

The *ledger* of a query says to which checkpoint its name belongs, which batch was delivered last and, while one is on
its way, which staged files it consists of.  The files are written down before anything is delivered.  So a commit that
is tried again after a crash delivers the same files, in the same order, and steps that had happened already have no
second effect:

* in a **log**, and on the **bus**, an event is named by publisher and number.  The publisher of a batch is made from
  query, checkpoint and batch, numbers count its events per topic, and the log takes no number twice;
* in a **database** every transaction of a batch also moves the ledger, which is an object there.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from typing import cast

from pubsub_api.errors import UsageError
from spark_pipeline.writing.targets.target import MicroBatch, Target

__all__ = ["MicroBatch", "Target", "open_target"]

# Imported when asked for: Spark starts a process for every step of planning, and each imports the format anew.
_TARGETS: Mapping[str, str] = {"log": "LogTarget", "db": "DbTarget", "bus": "BusTarget"}
"""Option, and module of this package -> class in it."""


def open_target(options: Mapping[str, str], staging: str) -> Target:
    """The target that a write's options name, with a directory below ``staging``.  Opens nothing yet.  Raises
    UsageError, NotSupported."""
    given = [name for name in _TARGETS if options.get(name)]
    if len(given) != 1:
        names = ", ".join(f'"{name}"' for name in _TARGETS)
        raise UsageError(f"give one of the options {names}: the URL of what the rows go to")
    (name,) = given
    module = importlib.import_module(f"{__name__}.{name}")
    # A directory for each target: which files are still needed, only the ledgers of their own target can tell.
    mark = hashlib.blake2b(f"{name} {options[name]}".encode(), digest_size=16).hexdigest()
    directory = os.path.join(staging, mark)
    return cast("Callable[[str, str], Target]", getattr(module, _TARGETS[name]))(options[name], directory)
