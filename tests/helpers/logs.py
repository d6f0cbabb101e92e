"""Logs that tests open themselves, with all that a log in segments can do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import durable_log
from durable_log.storage.segmented import SegmentedLog


@contextlib.contextmanager
def opened(url: str) -> Iterator[SegmentedLog]:
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        yield log
