"""Logs that tests open themselves, with all that a log in segments can do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import durable_log
from durable_log.storage.segmented import SegmentedLog
from tests.helpers.waiting import wait_until

T = TypeVar("T")


@contextlib.contextmanager
def opened(url: str) -> Iterator[SegmentedLog]:
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        yield log


def in_time(call: Callable[[], T]) -> T:
    """What a call returns that is made again while the server takes longer to answer than the log waits."""

    def outcome() -> T | None:
        with contextlib.suppress(durable_log.LogUnavailable):
            return call()
        return None

    found = wait_until(outcome, 60, "the server to answer in time")
    assert found is not None
    return found
