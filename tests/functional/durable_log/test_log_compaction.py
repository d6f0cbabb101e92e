"""Compaction of shards that are large: in little memory, and without reading all of it again."""

from __future__ import annotations

import contextlib
import pathlib
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

import durable_log
from durable_log.log_api import Segment
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from durable_log.upkeep.maintenance import Maintainer
from durable_log.upkeep.verifying import verify
from tests.functional.durable_log.test_log_maintenance import HOUR_NS, TOPIC, objects, version_frame

Open = Callable[..., SegmentedLog]


@pytest.fixture
def open_log(tmp_path: pathlib.Path) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def open_it(number: int, **options: object) -> SegmentedLog:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            url = f"sqlite://{tmp_path}/{number}.db?shards=1&{query}"
            log = stack.enter_context(contextlib.closing(durable_log.open(url)))
            assert isinstance(log, SegmentedLog)
            return log

        yield open_it


def test_compaction_finds_the_same_in_many_buckets(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log, source = open_log(0, compact_topics=TOPIC, seal_events=1, compact_tombstone_age=1800), Source()
    keys = [f"k{number % 37}" for number in range(300)]
    monkeypatch.setattr("durable_log.segments.newest_events.BUCKET_EVENTS", 10)
    for first in range(1, 301, 50):
        some = [
            (keys[number - 1], "delete" if number % 5 == 0 else "set", number) for number in range(first, first + 50)
        ]
        log.append([version_frame(source, first, *some)])
        Sealer(log).seal(0)
    with Maintainer(log) as maintainer:
        maintainer.run_once()
        newest = {key: version for version, key in enumerate(keys, 1)}
        assert sorted((key, version) for _, key, _, version in objects(log)) == sorted(newest.items())
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert sorted(version for *_, version in objects(log)) == sorted(one for one in newest.values() if one % 5)


def test_of_a_large_shard_only_what_is_new_is_read(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as much of what is before it; a delete goes when all is looked at."""
    monkeypatch.setattr("durable_log.segments.compaction.SMALL_EVENTS", 50)
    log, source = open_log(0, compact_topics=TOPIC, compact_tombstone_age=1800), Source()
    read: list[int] = []
    batches = log.segment_reader.batches

    def note(segment: Segment, *rest: object) -> object:
        read.append(segment.first)
        return batches(segment, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(log.segment_reader, "batches", note)
    compactor = SegmentCompactor(log, Sealer(log))

    def seal(first: int, *rows: tuple[str, str, int]) -> None:
        log.append([version_frame(source, first, *rows)])
        Sealer(log).seal(0)

    def compact(now_ns: int) -> list[int]:
        read.clear()
        compactor.compact(0, now_ns)
        return sorted(set(read))

    now_ns = time.time_ns()
    seal(1, *((f"k{number}", "set", number) for number in range(1, 101)))
    assert compact(now_ns) == [0]
    seal(101, ("k1", "delete", 101), ("k2", "set", 102))
    assert compact(now_ns) == [100]
    assert len(objects(log)) == 102, "what is before it was not looked at"
    seal(103, ("k3", "set", 103), ("k2", "set", 104), ("n1", "set", 105))
    assert compact(now_ns) == [100, 102]
    assert len(objects(log)) == 104, "k2 is there once less"
    assert compact(now_ns) == []
    assert compact(now_ns + HOUR_NS) == [0, 100, 102]
    assert sorted(key for _, key, _, _ in objects(log)) == sorted({f"k{n}" for n in range(2, 101)} | {"n1"})
    seal(106, ("k4", "delete", 106))
    assert compact(now_ns + HOUR_NS + 10**9) == [105], "it is old enough, and others are waited for"
    assert compact(now_ns + HOUR_NS + 180 * 10**9) == [0, 100, 102, 105]
    assert "k4" not in {key for _, key, _, _ in objects(log)}
    assert verify(log).problems == []


def test_compaction_of_more_objects_takes_no_more_memory(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable_log.segments.newest_events.BUCKET_EVENTS", 1000)
    peaks = []
    for count in (5_000, 20_000):
        log, source = open_log(count, compact_topics=TOPIC, seal_events=500), Source()
        for first in range(1, count + 1, 2500):
            rows = [(f"object-{number}", "set", number) for number in range(first, first + 2500)]
            log.append([version_frame(source, first, *rows)])
        Sealer(log).seal(0)
        compactor = SegmentCompactor(log, Sealer(log))
        tracemalloc.start()
        try:
            assert compactor.compact(0, log.now_ns()).objects == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks
