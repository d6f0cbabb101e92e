"""Segments are compared with the manifest once, and again when they look different."""

from __future__ import annotations

import contextlib
import os
import pathlib

import pytest

import durable_log
from durable_log.errors import LogCorrupt
from durable_log.log_api import Segment
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from spark_pipeline.reading.segment_checker import SegmentChecker

pytest.importorskip("pyarrow")


@pytest.fixture
def segments(tmp_path: pathlib.Path) -> list[Segment]:
    """The sealed files of a log of two shards."""
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=2")) as log:
        assert isinstance(log, SegmentedLog)
        for topic in ("a", "b", "c", "d"):
            body = pack_body([encode_event(Event(table="port", key="p", action="set", value=1, version=1), 1)])
            log.append([frames.pack(Kind.DATA, b"g" * 16, topic, body, first=1, after=0, count=1, timestamp=1)])
        for shard in range(2):
            Sealer(log).seal(shard)
        return log.segments()


def replace_content(segment: Segment, *, seconds_later: int) -> None:
    """Other content of the same size, with a time of change of its own."""
    path = pathlib.Path(segment.path)
    changed_ns = path.stat().st_mtime_ns + seconds_later * 10**9
    path.chmod(0o600)
    path.write_bytes(bytes(segment.bytes))
    os.utime(path, ns=(changed_ns, changed_ns))


def test_whole_files_pass_and_a_changed_one_is_named_even_after_it_passed(segments: list[Segment]) -> None:
    checker = SegmentChecker()
    assert len(segments) == 2
    for _ in range(2):
        checker.check(segments)
    replace_content(segments[1], seconds_later=5)
    with pytest.raises(LogCorrupt, match=pathlib.Path(segments[1].path).name):
        checker.check(segments)
    with pytest.raises(LogCorrupt):
        checker.check(segments)


def test_a_file_that_looks_the_same_is_read_once(segments: list[Segment]) -> None:
    checker = SegmentChecker()
    checker.check(segments)
    replace_content(segments[0], seconds_later=0)
    checker.check(segments)
    with pytest.raises(LogCorrupt):
        SegmentChecker().check(segments)


def test_a_missing_file_is_named(segments: list[Segment]) -> None:
    pathlib.Path(segments[0].path).unlink()
    with pytest.raises(LogCorrupt, match="is missing"):
        SegmentChecker().check(segments)
