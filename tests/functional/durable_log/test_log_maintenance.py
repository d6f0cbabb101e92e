"""Sealing when it is due, dropping by age and by size, compacting: and all of it counted."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

import durable_log
from durable_log.loading import build_log
from durable_log.log_api import LogApi, ShardState, StoredFrame
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, check_consistent, events_of, read_events, read_frames
from durable_log.upkeep.maintenance import Maintainer
from durable_log.upkeep.verifying import verify
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.errors import DriverDependencyMissing, InvalidConfig
from tests.helpers.waiting import wait_until

TOPIC = "t"
HOUR_NS = 3600 * 10**9

Open = Callable[..., SegmentedLog]


@pytest.fixture
def open_log(tmp_path: pathlib.Path) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def open_it(**options: object) -> SegmentedLog:
            query = "&".join(f"{name}={value}" for name, value in {"shards": 1, **options}.items())
            log = stack.enter_context(contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?{query}")))
            assert isinstance(log, SegmentedLog)
            return log

        yield open_it


def version_frame(
    source: Source, number: int, *rows: tuple[str, str, int], at: int = 0, key: bytes | None = None
) -> bytes:
    """A frame of events ``(key, action, version)``, sent at ``at`` plus their versions."""
    events = [["table", key, action, {"v": version}, version, at + version] for key, action, version in rows]
    body = msgspec.msgpack.encode(events)
    return frames.pack(Kind.DATA, source.guid, TOPIC, body, first=number, after=number - 1, count=len(rows), key=key)


def objects(log: LogApi) -> list[tuple[int, str, str, int]]:
    """Offset, key, action and version of every event."""
    return [(one.offset, one.event.key, one.event.action, one.event.version) for one in read_events(log, 0)]


def test_a_shard_is_sealed_when_it_has_enough(open_log: Open) -> None:
    log, source = open_log(seal_events=100), Source()
    with Maintainer(log) as maintainer:
        log.append([source.frame(TOPIC, 33) for _ in range(3)])
        maintainer.run_once()
        assert log.state()[0].sealed == 0
        log.append([source.frame(TOPIC, 33)])
        maintainer.run_once()
    assert log.state()[0].sealed == 132
    assert (maintainer.statistics.sealed_segments, maintainer.statistics.sealed_events) == (1, 132)
    check_consistent(log)


def test_a_shard_is_sealed_when_it_is_old_enough(open_log: Open) -> None:
    log = open_log(seal_age=1800)
    log.append([Source().frame(TOPIC, 3)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
        assert log.segments() == []
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert log.state()[0].sealed == 3


def test_what_is_too_old_is_dropped(open_log: Open) -> None:
    log, source = open_log(retention_age=1800, seal_age=0), Source()
    log.append([source.frame(TOPIC, 3)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
        assert log.state()[0].start == 0
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert log.state()[0].start == 3
    assert maintainer.statistics.dropped_by_age == 3
    assert list(pathlib.Path(log.segment_store.place).glob("*/*")) == []
    assert log.append([source.frame(TOPIC)]).ends == {0: 4}


def test_the_oldest_is_dropped_when_there_is_too_much(open_log: Open) -> None:
    log, source = open_log(seal_events=50, retention_bytes=20_000), Source()
    with Maintainer(log) as maintainer:
        for number in range(1, 60):
            log.append([source.frame(TOPIC, 50)])
            maintainer.run_once()
            state = log.state()[0]
            assert sum(segment.bytes for segment in log.segments()) + state.bytes <= 20_000
            assert state.end == 50 * number
    assert 0 < maintainer.statistics.dropped_by_bytes == log.state()[0].start
    assert read_frames(log, 0)[-1].end == 2950


def test_hot_frames_are_dropped_too_when_there_is_too_much(open_log: Open) -> None:
    log, source = open_log(shards=2, retention_bytes=10_000), Source()
    log.append([source.frame(f"t/{number % 7}", 10) for number in range(100)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
    assert 0 < sum(state.bytes for state in log.state()) <= 10_000
    assert maintainer.statistics.dropped_by_bytes == sum(state.start for state in log.state())


def test_streams_that_ended_long_ago_are_forgotten(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable_log.config.STREAM_FORGET_AGE_S", 1800.0)
    log, gone, hot = open_log(seal_age=7200), Source(), Source()
    log.append([gone.frame(TOPIC, 3)])
    Sealer(log).seal(0)
    log.append([hot.frame(TOPIC, 3)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
        assert len(log.streams(0)) == 2
        maintainer.run_once(time.time_ns() + HOUR_NS // 2 + 10**9)
    assert [stream.guid for stream in log.streams(0)] == [hot.guid]
    assert maintainer.statistics.forgotten_streams == 1
    assert len(log.read_stream(gone.guid, TOPIC, 1, 3)) == 1


def test_compaction_keeps_the_newest_of_each_object(open_log: Open) -> None:
    log, source = open_log(compact_topics="t/%23", seal_events=1), Source()
    sent = [
        version_frame(source, 1, ("a", "create", 1), ("b", "create", 2), ("a", "set", 3), ("c", "set", 4)),
        version_frame(source, 5, ("b", "delete", 5)),
        version_frame(source, 6, ("a", "set", 9), ("d", "set", 7), ("a", "set", 8)),
    ]
    with Maintainer(log) as maintainer:
        for frame in sent:
            log.append([frame])
            maintainer.run_once()
        newest = [(3, "c", "set", 4), (4, "b", "delete", 5), (5, "a", "set", 9), (6, "d", "set", 7)]
        assert objects(log) == [*newest, (7, "a", "set", 8)], "what contradicts itself stays"
        assert maintainer.statistics.compacted_events == 3
        log.append([version_frame(source, 9, ("b", "create", 10))])
        maintainer.run_once()
    assert objects(log) == [
        (3, "c", "set", 4), (5, "a", "set", 9), (6, "d", "set", 7), (7, "a", "set", 8), (8, "b", "create", 10),
    ]  # fmt: skip
    assert log.read(0, 0, events_max=1)[0].offset == 3
    # What went of a frame counts as skipped on purpose, what went as a whole frame is missing.
    headers = [stored.header() for stored in read_frames(log, 0)]
    assert [(header.after, header.first, header.last) for header in headers] == [(0, 4, 4), (5, 6, 8), (8, 9, 9)]
    assert [event.number for stored in read_frames(log, 0) for event in events_of(stored)] == [4, 6, 7, 8, 9]
    assert log.state()[0].end == 9


def test_compaction_removes_deletes_that_are_old(open_log: Open) -> None:
    log, source = open_log(compact_topics=TOPIC, compact_tombstone_age=1800), Source()
    log.append([version_frame(source, 1, ("a", "set", 1), ("a", "delete", 2), ("b", "set", 3))])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert objects(log) == [(2, "b", "set", 3)]


def test_a_delete_comes_of_age_though_nothing_is_sealed_any_more(open_log: Open) -> None:
    log, source = open_log(compact_topics=TOPIC, compact_tombstone_age=1800, seal_age=0), Source()
    log.append([version_frame(source, 1, ("a", "set", 1), ("a", "delete", 2), ("b", "set", 3))])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + 10**9)
        assert objects(log) == [(1, "a", "delete", 2), (2, "b", "set", 3)]
        segments = log.segments()
        maintainer.run_once(time.time_ns() + 2 * 10**9)
        assert log.segments() == segments, "nothing is due"
        maintainer.run_once(time.time_ns() + HOUR_NS)
        assert objects(log) == [(2, "b", "set", 3)]
        log.append([version_frame(source, 4, ("b", "delete", 4))])
        maintainer.run_once(time.time_ns() + 2 * HOUR_NS)
    assert objects(log) == []
    assert verify(log).problems == [], "also when nothing is left at its end"


def test_a_delete_stays_while_something_else_of_its_object_is_in_a_signed_frame(open_log: Open) -> None:
    log, source, signer = open_log(compact_topics=TOPIC, compact_tombstone_age=1800, seal_age=0), Source(), Source()
    log.append([version_frame(signer, 1, ("a", "set", 1), ("b", "set", 2), key=b"secret")])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + 10**9)
        log.append([version_frame(source, 1, ("b", "delete", 3), ("c", "delete", 4), at=10)])
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert objects(log) == [(0, "a", "set", 1), (1, "b", "set", 2), (2, "b", "delete", 3)]


def test_a_delete_stays_while_something_else_of_its_object_is_not_sealed(open_log: Open) -> None:
    """An older event comes late: who reads the log from its start must not take the object for one that exists."""
    log, source = open_log(compact_topics=TOPIC, compact_tombstone_age=1800, seal_age=7200), Source()
    log.append([version_frame(source, 2, ("a", "delete", 2), ("b", "delete", 3))])
    Sealer(log).seal(0)
    log.append([version_frame(source, 1, ("a", "set", 1))])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
        assert objects(log) == [(0, "a", "delete", 2), (2, "a", "set", 1)]
        maintainer.run_once(time.time_ns() + 3 * HOUR_NS)
        assert objects(log) == [(0, "a", "delete", 2)], "not before the older one is gone: it is in a later segment"
        maintainer.run_once(time.time_ns() + 3 * HOUR_NS)
    assert objects(log) == []


def test_compaction_loses_nothing_of_a_database_whose_versions_began_again(open_log: Open) -> None:
    """Published by another publisher, or by the same one; a delete does not go while it hides something."""
    log, old, new = open_log(compact_topics=TOPIC, compact_tombstone_age=1800, seal_age=0), Source(), Source()
    log.append([version_frame(old, 1, ("a", "set", 900), ("b", "set", 901), ("a", "set", 902))])
    log.append([version_frame(old, 4, ("b", "set", 1), ("b", "set", 2), at=1000)])
    again = [("a", "set", 3), ("a", "delete", 4), ("c", "set", 5), ("c", "delete", 6)]
    log.append([version_frame(new, 1, *again, at=1000)])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert [row[1:] for row in objects(log)] == [
        ("b", "set", 901), ("a", "set", 902), ("b", "set", 2), ("a", "delete", 4),
    ]  # fmt: skip


def test_compaction_can_leave_a_segment_empty(open_log: Open) -> None:
    log, source = open_log(compact_topics=TOPIC, seal_events=1), Source()
    with Maintainer(log) as maintainer:
        for number in range(1, 6):
            log.append([version_frame(source, number, ("a", "set", number))])
            maintainer.run_once()
    assert objects(log) == [(4, "a", "set", 5)]
    assert [segment.rows for segment in log.segments()] == [0, 0, 0, 0, 1]
    assert [one.offset for one in log.read(0, 0)] == [4]
    assert log.read_stream(source.guid, TOPIC, 1, 5) == [log.read(0, 4)[0].frame]
    assert log.trim(0, 4) == 4


def test_compaction_leaves_other_topics_and_signed_frames_alone(open_log: Open) -> None:
    log, signed = open_log(compact_topics="u"), Source(key=b"secret")
    sent = [signed.frame("u", 20), Source().frame("v", 20)]
    log.append(sent)
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
        assert log.state()[0].sealed == 40
    assert [one.frame for one in read_frames(log, 0)] == sent
    assert maintainer.statistics.compacted_segments == 0


def test_more_objects_than_allowed_are_not_compacted(
    open_log: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_log.config.COMPACT_OBJECTS_MAX", 2)
    log, source = open_log(compact_topics=TOPIC), Source()
    log.append([version_frame(source, 1, ("a", "set", 1), ("b", "set", 2), ("c", "set", 3), ("a", "set", 4))])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert len(objects(log)) == 4
    assert "more than 2 objects" in caplog.text


def test_a_thread_maintains_the_log_until_it_is_closed(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable_log.config.MAINTENANCE_INTERVAL_S", 0.05)
    log = open_log(seal_events=1)
    log.append([Source().frame(TOPIC, 3)])
    before = set(threading.enumerate())
    with Maintainer(log).start():
        wait_until(lambda: log.state()[0].sealed == 3, 30, "the shard to be sealed")
    assert set(threading.enumerate()) <= before


def test_while_another_process_seals_the_rest_is_done(open_log: Open) -> None:
    log = open_log(seal_events=1, retention_age=1800)
    log.append([Source().frame(TOPIC, 3)])
    with Sealer(log).lock(), Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert maintainer.statistics.busy == 1
    assert maintainer.statistics.dropped_by_age == 3


@pytest.mark.parametrize("job", ["compact", "trim"])
def test_what_others_remove_on_purpose_while_a_log_is_verified_is_not_missing(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    log, source = open_log(compact_topics=TOPIC), Source()
    for number in range(1, 6):
        log.append([version_frame(source, number, ("a", "set", number))])
        Sealer(log).seal(0)
    read, state = log.read, log.state

    def read_late(*place: int) -> list[StoredFrame]:
        with Maintainer(log) as maintainer:
            maintainer.run_once(time.time_ns() + HOUR_NS)
        return read(*place)

    def trim_meanwhile() -> list[ShardState]:
        found = state()
        log.trim(0, min(4, found[0].start + 2))
        return found

    monkeypatch.setattr(log, *(("read", read_late) if job == "compact" else ("state", trim_meanwhile)))
    assert verify(log).problems == []
    assert [one.offset for one in read(0, 4)] == [4]


def test_without_pyarrow_the_log_works_and_sealing_names_the_extra(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    log = open_log()
    assert log.append([Source().frame(TOPIC, 3)]).events == 3
    assert len(read_frames(log, 0)) == 1
    with pytest.raises(DriverDependencyMissing, match=r"pip install 'heliograph\[log\]'"):
        Sealer(log)


def test_a_log_without_a_place_for_segments_says_so(tmp_path: pathlib.Path) -> None:
    log = build_log(f"sqlite://{tmp_path}/log.db")
    assert isinstance(log, SegmentedLog)
    log.default_directory = None
    with pytest.raises(InvalidConfig, match="segment_directory"), Sealer(log).lock():
        pass


def test_the_file_shrinks_when_its_frames_are_sealed(open_log: Open, tmp_path: pathlib.Path) -> None:
    log, source = open_log(seal_events=100), Source()
    for _ in range(20):
        log.append([source.frame(TOPIC, 10, value="x" * 20_000) for _ in range(2)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
    assert log.state()[0].sealed == 400
    log.close()
    assert (tmp_path / "log.db").stat().st_size < 2 << 20
    assert len(read_frames(open_log(), 0)) == 40


def test_the_file_counts_for_what_may_be_kept(open_log: Open) -> None:
    """Many small frames take more than their bytes."""
    log, source = open_log(retention_bytes=2 << 20, seal_events=10_000_000), Source()
    log.append([source.frame(TOPIC, 1) for _ in range(30_000)])
    used = log.unsealed_bytes()
    assert used > 2 << 20
    with Maintainer(log) as maintainer:
        maintainer.run_once()
    assert log.unsealed_bytes() <= 2 << 20
    assert maintainer.statistics.dropped_by_bytes == log.state()[0].start > 0
    assert log.state()[0].end > log.state()[0].start


def test_a_log_can_be_opened_and_read_while_somebody_writes(open_log: Open, tmp_path: pathlib.Path) -> None:
    log = open_log()
    log.append([Source().frame(TOPIC, 3)])
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        other = open_log(operation_timeout=0.2)
        assert other.list_records("") == []
        assert other.state()[0].end == 3
        assert len(read_frames(other, 0)) == 1
        writer.execute("ROLLBACK")


def fill_shards(log: SegmentedLog) -> None:
    source = Source()
    for number in range(40):
        log.append([source.frame(f"t{number}", 10)])
    assert all(state.end for state in log.state())


@pytest.mark.parametrize("option", [{}, {"retention_age": 1800}, {"retention_bytes": 1}, {"compact_topics": "%23"}])
def test_a_damaged_frame_stops_no_other_shard(
    open_log: Open, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, option: dict[str, object]
) -> None:
    log = open_log(shards=4, seal_events=10, **option)
    fill_shards(log)
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        connection.execute("UPDATE frames SET frame = zeroblob(length(frame)) WHERE id = 0")
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert maintainer.statistics.errors > 0
    assert "sealing of shard 0 failed" in caplog.text
    sound = log.state()[1:]
    assert all(state.sealed == state.end for state in sound)
    if "retention_age" in option or "retention_bytes" in option:
        assert all(state.start == state.end for state in sound)


@pytest.mark.parametrize("option", [{"retention_age": 1800}, {"retention_bytes": 1}])
def test_what_is_too_much_is_dropped_though_nothing_can_be_sealed(
    open_log: Open, tmp_path: pathlib.Path, option: dict[str, object]
) -> None:
    log = open_log(shards=2, seal_events=10, **option)
    (tmp_path / "log.db-segments").mkdir()
    for shard in range(2):
        (tmp_path / "log.db-segments" / f"{shard:04d}").touch()  # where a directory ought to be
    fill_shards(log)
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert maintainer.statistics.errors >= 2
    assert maintainer.statistics.sealed_segments == 0
    assert all(state.start == state.end for state in log.state())


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_clock_that_was_far_ahead_for_a_moment_stops_no_retention(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_sealed: bool
) -> None:
    monkeypatch.setattr("durable_log.config.SEGMENT_SEALS", 1)
    log, source = open_log(retention_age=1800, seal_age=60, seal_events=30), Source()
    log.append([source.frame(TOPIC, 10)])
    with monkeypatch.context() as patched:
        right = time.time_ns
        patched.setattr(time, "time_ns", lambda: right() + 365 * 24 * HOUR_NS)
        log.append([source.frame(TOPIC, 10)])
    for _ in range(10):
        log.append([source.frame(TOPIC, 10)])
    if is_sealed:
        Sealer(log).seal(0)
    with Maintainer(log) as maintainer:
        maintainer.run_once()
        assert log.state()[0].start == 0, "nothing is too old"
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert log.state()[0].start == log.state()[0].end == 120
    assert maintainer.statistics.dropped_by_age == 120
    assert maintainer.statistics.stamped_ahead > 0
    assert "clock" in caplog.text


def test_what_was_stamped_by_a_clock_ahead_is_sealed_at_once(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(seal_age=60)
    with monkeypatch.context() as patched:
        right = time.time_ns
        patched.setattr(time, "time_ns", lambda: right() + 365 * 24 * HOUR_NS)
        log.append([Source().frame(TOPIC, 10)])
    with Maintainer(log) as maintainer:
        maintainer.run_once()
    assert log.state()[0].sealed == 10
