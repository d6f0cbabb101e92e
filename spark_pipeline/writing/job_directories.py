"""Directories that a job writes and then puts in their place: what a killed job leaves is recognised, and removed.

Such a directory holds a file that is locked as long as its job lives.  The system gives the lock back with the process,
however it ends.  So a directory whose lock is free belongs to no job any more, and nothing is decided by age.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

from pubsub_api.errors import UsageError
from pubsub_api.runtime import files

_ATTEMPTS_MAX = 100
_LOCK = "_lock"
"""Spark takes files that begin so for none of its own."""


@contextlib.contextmanager
def attempt(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty directory for this job alone, below the given one; what a dead job left there is removed first.

    It has a name of its own, because the Java of a job that was killed may live a little longer and still write where
    that job was.  Both are gone at the end; take out of it what is to stay.  Raises UsageError when another job that
    is alive has it.
    """
    handle = _locked_anew(directory)
    try:
        _clear(directory)
        place = directory / uuid.uuid4().hex
        place.mkdir()
        yield place
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(handle)


def put_in_place(made: pathlib.Path, target: pathlib.Path) -> None:
    """Let what was made in an attempt be the target, all at once.  Raises UsageError when something is there."""
    try:
        os.rename(made, target)
    except OSError as error:
        raise UsageError(f"{target} exists already, or cannot be made: {error}") from error


def unfinished(target: pathlib.Path) -> pathlib.Path:
    """Where an attempt to make a directory is, beside it."""
    return target.with_name(f"{target.name}.unfinished")


def remove_dead(parent: pathlib.Path, pattern: str) -> list[str]:
    """Remove the directories of jobs that are dead.  Returns their names."""
    removed = []
    for directory in parent.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            handle = _lock(directory)
            if handle is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(handle)
                removed.append(directory.name)
    return removed


def _locked_anew(directory: pathlib.Path) -> int:
    """Make the directory when it is missing, and lock it."""
    for _ in range(_ATTEMPTS_MAX):
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another job took it for a dead one's before it had its lock
            handle = _lock(directory)
            if handle is None:
                break
            if files.identity_of(directory / _LOCK) == files.identity_of(handle):
                return handle
    raise UsageError(f"{directory} is being written by another job: wait for it, or name another place")


def _lock(directory: pathlib.Path) -> int | None:
    """The lock, which is held until this is closed; None when another job has it.  Raises FileNotFoundError."""
    handle = files.open_private(directory / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held; or a file system without locks, where that cannot be known: then it stays
        os.close(handle)
        return None
    return handle


def _clear(directory: pathlib.Path) -> None:
    for found in directory.iterdir():
        if found.name == _LOCK:
            continue
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink()
