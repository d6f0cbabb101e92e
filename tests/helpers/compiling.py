"""Compiles the test files once for all processes of a run.

Every process imports every test file.  In a fresh checkout that takes long, because pytest rewrites the assertions of
each.  So each process begins with files of its own, and finds the others compiled when it comes to them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

import pytest

from tests.helpers.paths import ROOT


def import_own_files(config: pytest.Config) -> None:
    """Of several processes that run the whole suite, let each import its part of the test files.  What goes wrong with
    a file is told when its tests are collected."""
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode or config.args != config.getini("testpaths"):
        return
    number = int(config.workerinput["workerid"].removeprefix("gw"))
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for file in files[number :: config.workerinput["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
