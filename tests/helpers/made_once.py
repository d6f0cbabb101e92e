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
    directory = tempfile.mkdtemp(prefix="heliograph-made-once-")
    os.environ[_VARIABLE] = directory
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def made_once(name: str, make: Callable[[], pathlib.Path]) -> pathlib.Path:
    """The directory that ``make`` returned, the first time that anybody asked for this name.  It is moved to where all
    processes find it; others wait meanwhile."""
    directory = pathlib.Path(os.environ[_VARIABLE])
    kept = directory / name
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            shutil.move(make(), kept)
    return kept
