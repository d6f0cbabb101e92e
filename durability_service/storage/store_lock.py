"""The lock that keeps a second service out of a store: that one would serve sets that the first one changes."""

from __future__ import annotations

import fcntl
import os
import pathlib
import time

from durability_service.errors import StoreInUse
from pubsub_api.runtime import files

IN_USE = "the store {} is used by another service: give each its own [durability] store"
_PAUSE_S = 0.05


def path_of(path: pathlib.Path) -> pathlib.Path:
    """The file that is locked.  While a process has the lock it must stay: a process that finds none makes another."""
    return path.with_name(f"{path.name}-lock")


def take(path: pathlib.Path, timeout_s: float) -> int:
    """The descriptor of a lock that only one service has.  It ends with the process, however that ends.

    Raises StoreInUse.
    """
    descriptor = files.open_private(path_of(path), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise StoreInUse(IN_USE.format(path)) from error
            time.sleep(_PAUSE_S)
        else:
            return descriptor


def release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has it open, too
    os.close(descriptor)
