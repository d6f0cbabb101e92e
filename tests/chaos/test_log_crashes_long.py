"""Processes killed while they append to a log, many times."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

import durable_log
from durable_log.storage.segmented import SegmentedLog
from tests.functional.durable_log.test_log_crashes import kill_while_appending

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("seed", range(100, 130))
def test_whoever_is_killed_while_appending_loses_nothing(tmp_path: pathlib.Path, seed: int) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=2&seal_events=80"
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        kill_while_appending(url, log, seed)
