"""What takes long to make and can be copied, made once for all processes of a test run.

`begin` is called once by the process that started the run.  Its directory is named to the others by a variable of the
environment, and removed at the end.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import pytest

_VARIABLE = "HELIOGRAPH_TESTS_MADE_ONCE"


def begin(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    made = tempfile.mkdtemp(prefix="heliograph-made-once-")
    os.environ[_VARIABLE] = made
    config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))


def directory() -> pathlib.Path:
    """What all processes of the run share."""
    return pathlib.Path(os.environ[_VARIABLE])


def made_once(name: str, make: Callable[[], pathlib.Path]) -> pathlib.Path:
    """The directory that ``make`` returned, the first time that anybody asked for this name.  It is moved to where all
    processes find it; others wait meanwhile."""
    kept = directory() / name
    with (directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            shutil.move(make(), kept)
    return kept
