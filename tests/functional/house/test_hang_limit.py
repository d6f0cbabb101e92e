"""A test that hangs after its time-out has fired ends its process."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

CONFTEST = """
from tests.helpers import hang_limit
hang_limit.GRACE_S = 0.5
def pytest_configure(config):
    hang_limit.install(config)
"""

HANGS = {
    "in a native call": """
import ctypes, pytest
@pytest.mark.timeout(0.5)
def test_that_hangs():
    lock = ctypes.create_string_buffer(128)
    ctypes.PyDLL(None).pthread_mutex_lock(lock)
    ctypes.PyDLL(None).pthread_mutex_lock(lock)
""",
    "in its clean-up": """
import threading, pytest
@pytest.fixture
def stuck():
    yield
    threading.Event().wait()
@pytest.mark.timeout(0.5)
def test_that_hangs(stuck):
    threading.Event().wait()
""",
}


@pytest.mark.parametrize("where", HANGS)
def test_the_process_ends_and_tells_where_it_was(where: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(HANGS[where])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull,
         "--rootdir", str(tmp_path), "-o", "timeout=250", "-o", "timeout_method=signal", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=250, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr, done.stderr
    assert "test_hanging.py" in done.stderr
