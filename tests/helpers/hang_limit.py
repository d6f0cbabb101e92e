"""Ends a process in which a test hangs although its time-out has fired.

The time-out is a signal.  It does not interrupt a native call, and what hangs after it, while fixtures are cleaned up,
has no time-out at all.  So each phase of a test has a second, longer limit, kept by a thread that needs no Python: it
writes where all threads are and ends the process.  With several processes the test counts as failed and others go on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Iterator

import pytest

GRACE_S = 60.0
"""How much longer than the time-out of a test each of its phases may take."""


class HangLimit:
    """A plug-in for pytest: limits the set-up, the call and the clean-up of each test.  ``stderr`` is where to tell."""

    def __init__(self, timeout_s: float, stderr: int) -> None:
        self._timeout_s = timeout_s
        self._stderr = stderr

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        with self._limited(item):
            return (yield)

    @contextlib.contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        faulthandler.dump_traceback_later(self._limit_s(item), exit=True, file=self._stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _limit_s(self, item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        timeout_s = float(marker.args[0]) if marker is not None and marker.args else self._timeout_s
        return timeout_s + GRACE_S


def install(config: pytest.Config) -> None:
    """Limit every test of this run, unless it has no time-out."""
    given = config.getoption("timeout", None)
    timeout_s = float(given if given is not None else config.getini("timeout") or 0)
    if timeout_s <= 0:  # somebody debugs
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        stderr = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    config.pluginmanager.register(HangLimit(timeout_s, stderr), "hang limit")
