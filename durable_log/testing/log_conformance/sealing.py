"""Sealed segments: the same log in another place, byte for byte."""

from __future__ import annotations

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from durable_log.core.fence import Fence
from durable_log.errors import LeaseLost, LogCorrupt, LogUnavailable, OffsetTooOld
from durable_log.log_api import DroppedRange, LogApi
from durable_log.segments import arrow
from durable_log.segments.columns import import_pyarrow
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.files import describe
from durable_log.segments.sealing import Sealer
from durable_log.segments.topic_retention import TopicAges, TopicRetention
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_conformance.appending import SHARD, TOPIC, stream
from durable_log.testing.log_conformance.base import SHARDS, LogConformanceBase
from durable_log.testing.sources import LoggedEvent, Source, check_consistent, numbers, read_events, read_frames
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind


def segmented(log: LogApi) -> SegmentedLog:
    """The suite's sealing tests are for drivers that derive from SegmentedLog; another one has nothing to seal."""
    if not isinstance(log, SegmentedLog):
        pytest.skip("this driver does not seal")
    return log


def columns_of(log: LogApi, shard: int, start: int, end: int) -> list[tuple[object, ...]]:
    """What `arrow_batches` says, as rows to compare."""
    batches = list(arrow.arrow_batches(log, shard, start, end))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def rows_of(shard: int, events: list[LoggedEvent], appended: list[int]) -> list[tuple[object, ...]]:
    """What it should say."""
    return [
        (shard, one.offset, one.guid, one.event.topic, one.number, one.event.table, one.event.key, one.event.action,
         msgspec.msgpack.encode(one.event.value), one.event.version, one.event.timestamp, when)
        for one, when in zip(events, appended, strict=True)
    ]  # fmt: skip


class SealConformance(LogConformanceBase):
    def test_what_is_sealed_reads_as_before(self, log: LogApi) -> None:
        sealed, sources = segmented(log), [Source(), Source(key=b"secret")]
        for _ in range(30):
            log.append([source.frame(f"t/{topic}", 7) for source in sources for topic in range(4)])
        log.append([sources[0].again("t/0", 300, 9), sources[0].again("t/0", 205, 99)])
        before = [read_frames(log, shard) for shard in range(SHARDS)]
        streams = [log.streams(shard) for shard in range(SHARDS)]
        for state in log.state():
            made = Sealer(sealed).seal(state.shard)
            assert [(one.shard, one.first, one.end, one.rows) for one in made] == (
                [(state.shard, 0, state.end, state.end)] if state.end else []
            )
        assert [read_frames(log, shard) for shard in range(SHARDS)] == before
        assert [read_frames(log, shard, events_max=20) for shard in range(SHARDS)] == before
        assert [log.streams(shard) for shard in range(SHARDS)] == streams
        assert all((state.sealed, state.bytes) == (state.end, 0) for state in log.state())
        check_consistent(log)

    def test_what_retention_removes_of_a_topic_is_known_and_what_compaction_removes_is_not(self, log: LogApi) -> None:
        sealed, source = segmented(log), Source()
        sealer = Sealer(sealed)
        compactor = SegmentCompactor(sealed, sealer)
        log.append([source.frame(TOPIC, 3) for _ in range(4)])
        (segment,) = sealer.seal(SHARD)
        now_ns = log.now_ns() + 10**12
        offsets = [table.slice(2, 8) for table in compactor.row_groups(segment)]
        assert compactor.write_anew(segment, offsets) == 4
        assert log.segments(SHARD)[0].dropped == ()
        assert log.dropped(SHARD, [(0, 2), (10, 12)], "#") == []
        other = Source()
        log.append([other.frame(TOPIC, 3)])
        sealer.seal(SHARD)
        ages = TopicAges([f"{TOPIC}=60"], 0.0)
        assert TopicRetention(sealed, sealer, compactor, ages)._drop_from(log.segments(SHARD)[0], now_ns) == 8
        (first, second) = log.segments(SHARD)
        assert first.dropped == (DroppedRange(TOPIC, 2, 10, 8, now_ns),)
        assert second.dropped == ()
        (name,) = [one for one in sealed.segment_store.published() if one.name.first == first.first]
        assert describe(sealed.segment_store, name).segment.dropped == first.dropped
        holes = [(0, 5), (7, 12)]
        assert log.dropped(SHARD, holes, "#") == [(2, 5), (7, 10)]
        assert log.dropped(SHARD, holes, TOPIC, since_ns=now_ns) == [(2, 5), (7, 10)]
        assert log.dropped(SHARD, holes, "elsewhere/#") == log.dropped(SHARD, holes, "#", since_ns=now_ns + 1) == []
        compactor.write_anew(first, [])
        assert log.segments(SHARD)[0].dropped == first.dropped
        log.trim(SHARD, 12)
        assert log.dropped(SHARD, holes, "elsewhere/#") == holes

    def test_hot_and_sealed_are_one_log(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 5) for _ in range(12)]
        log.append(sent[:8])
        Sealer(segmented(log)).seal(SHARD, 33)
        assert log.state()[SHARD].sealed == 30
        log.append(sent[8:])
        assert [one.frame for one in read_frames(log, SHARD)] == sent
        for offset in (0, 4, 5, 29, 30, 31, 59):
            assert log.read(SHARD, offset, events_max=1)[0].frame == sent[offset // 5]
        assert log.read_stream(source.guid, TOPIC, 24, 42) == sent[4:9]
        assert log.append(sent).duplicates == 60
        check_consistent(log)

    def test_late_events_are_found_by_their_numbers(self, log: LogApi) -> None:
        source, sealer = Source(), Sealer(segmented(log))
        pieces = [source.again(TOPIC, 1 + 3 * number, 3) for number in range(9)]
        for order in ((0, 8), (4, 2), (1, 3), (7, 6, 5)):
            log.append([pieces[number] for number in order])
            sealer.seal(SHARD, log.state()[SHARD].end - 3)
        assert log.read_stream(source.guid, TOPIC, 1, 27) == pieces
        assert log.read_stream(source.guid, TOPIC, 8, 13) == pieces[2:5]
        assert log.read_stream(source.guid, TOPIC, 1, 27, bytes_max=1) == pieces[:1]
        assert stream(log, source).missing == ()

    def test_columns_are_the_same_hot_and_sealed(self, log: LogApi) -> None:
        source = Source()
        for count in (3, 1, 8, 200):
            log.append([source.frame(TOPIC, count), source.frame(TOPIC, 2, lose=3)])
        stored, events = read_frames(log, SHARD), read_events(log, SHARD)
        end = log.state()[SHARD].end
        expected = rows_of(SHARD, events, [one.appended_ns for one in stored for _ in range(one.count)])
        for limit in (0, 7, 15, end):
            Sealer(segmented(log)).seal(SHARD, limit)
            for low, high in ((0, end), (1, 2), (5, 120), (14, 14), (end - 1, end + 100)):
                assert columns_of(log, SHARD, low, high) == expected[low:high]
        [only] = arrow.arrow_batches(log, SHARD, 0, 5, columns=["seq", "key"])
        assert only.schema.names == ["seq", "key"]

    def test_what_cannot_be_decoded_is_sealed_as_it_is(self, log: LogApi) -> None:
        source = Source()
        good = source.frame(TOPIC, 2)
        bad = frames.pack(Kind.DATA, source.guid, TOPIC, b"\x92\x01\x02", first=3, after=2, count=2)
        # Sound, and not encoded as we would: a short array, and a map of numbers.
        body = msgspec.msgpack.encode([["t", "k", "set", {1: 2}]])
        other = frames.pack(Kind.DATA, source.guid, TOPIC, body, first=5, after=4, count=1)
        log.append([good, bad, other])
        hot = columns_of(log, SHARD, 0, 5)
        Sealer(segmented(log)).seal(SHARD)
        assert [one.frame for one in read_frames(log, SHARD)] == [good, bad, other]
        assert columns_of(log, SHARD, 0, 5) == hot
        assert [row[5] for row in hot] == ["table1", "table2", None, None, "t"]
        assert [row[4] for row in hot] == [1, 2, 3, 4, 5]

    def test_a_time_is_found_in_segments(self, log: LogApi) -> None:
        source, sealer, times = Source(), Sealer(segmented(log)), list[int]()
        for number in range(12):
            log.append([source.frame(TOPIC, 3)])
            times.append(log.read(SHARD, 3 * number)[0].appended_ns)
            if number % 3 == 2:
                sealer.seal(SHARD, 3 * number)
        for when in times:
            assert log.find(SHARD, when) == 3 * times.index(when)
        assert log.find(SHARD, 0) == 0
        assert log.find(SHARD, times[-1] + 1) == 36

    def test_when_an_event_was_appended_is_known_whether_it_is_sealed_or_not(self, log: LogApi) -> None:
        source, sealer = Source(), Sealer(segmented(log))
        for _ in range(4):
            log.append([source.frame(TOPIC, 3)])
        times = [one.appended_ns for one in read_frames(log, SHARD) for _ in range(one.count)]
        sealer.seal(SHARD, 6)
        assert [log.appended_at(SHARD, offset) for offset in range(12)] == times
        assert log.appended_at(SHARD, 12) is None
        log.trim(SHARD, 6)
        assert [log.appended_at(SHARD, offset) for offset in range(12)] == [None] * 6 + times[6:]

    def test_trimming_drops_whole_segments_and_their_files(self, log: LogApi) -> None:
        source, sealer = Source(), Sealer(segmented(log))
        sent = [source.frame(TOPIC, 5) for _ in range(12)]
        for number in range(4):
            log.append(sent[3 * number : 3 * number + 3])
            if number < 3:
                sealer.seal(SHARD)
        sealed, there = log.segments(SHARD), segmented(log).segment_store.exists
        assert len(sealed) == 3
        assert log.trim(SHARD, 29) == 15
        assert [there(one) for one in sealed] == [False, True, True]
        with pytest.raises(OffsetTooOld) as caught:
            log.read(SHARD, 14)
        assert caught.value.start == 15
        assert log.read_stream(source.guid, TOPIC, 1, 60) == sent[3:]
        assert log.trim(SHARD, 52) == 35
        assert log.segments(SHARD) == []
        assert not any(there(one) for one in sealed)
        assert [one.frame for one in read_frames(log, SHARD)] == sent[10:]

    def test_appending_and_reading_go_on_while_others_seal(self, log: LogApi) -> None:
        source, total = Source(), 60

        def append() -> None:
            for _ in range(total):
                log.append([source.frame(TOPIC, 5)])

        sealer = Sealer(segmented(log))
        with ThreadPoolExecutor(1) as pool:
            appending = pool.submit(append)
            while not appending.done():
                sealer.seal(SHARD)
                seen = numbers(log, source.guid, TOPIC)
                assert seen == list(range(1, len(seen) + 1))
            appending.result()
        assert numbers(log, source.guid, TOPIC) == list(range(1, 5 * total + 1))
        check_consistent(log)

    def test_a_reader_of_columns_is_told_when_the_rest_is_dropped(self, log: LogApi) -> None:
        source, sealer = Source(), Sealer(segmented(log))
        for _ in range(2):
            log.append([source.frame(TOPIC, 5)])
            sealer.seal(SHARD)
        batches = arrow.arrow_batches(log, SHARD, 0, 10)
        assert next(batches).num_rows == 5
        log.trim(SHARD, 10)
        with pytest.raises(OffsetTooOld):
            next(batches)

    def test_one_at_a_time_seals(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC)])
        first, second = Sealer(segmented(log)), Sealer(segmented(log))
        with first.lock(), pytest.raises(LogUnavailable):
            second.seal(SHARD)
        assert len(second.seal(SHARD)) == 1

    def test_a_change_whose_fence_does_not_hold_is_refused(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC, 5) for _ in range(2)])
        sealed = segmented(log)
        [segment] = Sealer(sealed).seal(SHARD, 5)
        log.put_records([("who", b"epoch-7 until then", 0)])
        token, listed = sealed.directory_token(), sealed.manifest(SHARD)
        entry = sealed.encode_entry(segment._replace(rows=4))
        for fence in (Fence("who", b"epoch-6 "), Fence("nobody", b"epoch-7 ")):
            for change in (
                lambda: sealed.add_segment(SHARD, 5, 10, entry, fence),  # noqa: B023
                lambda: sealed.replace_segments(SHARD, (0, 5), listed, entry, fence),  # noqa: B023
                lambda: sealed.set_directory_token("another", fence),  # noqa: B023
            ):
                with pytest.raises(LeaseLost):
                    change()
        assert (sealed.directory_token(), sealed.manifest(SHARD)) == (token, listed)
        assert sealed.replace_segments(SHARD, (0, 5), listed, entry, Fence("who", b"epoch-7 "))
        assert sealed.manifest(SHARD) == [entry]
        assert log.state()[SHARD].sealed == 5

    @pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "empty", "directory", "swapped", "aged"])
    def test_a_damaged_segment_is_named(self, log: LogApi, log_url: str, damage: str) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 50) for _ in range(20)])
        [segment] = Sealer(segmented(log)).seal(SHARD)
        log.append([source.frame(TOPIC, 1)])
        _damage(pathlib.Path(segment.path), damage)
        other = self.open_log(log_url)
        try:
            for call in (
                lambda: other.read(SHARD, 0),
                lambda: other.read_stream(source.guid, TOPIC, 1, 5),
                lambda: list(arrow.arrow_batches(other, SHARD, 0, 10)),
            ):
                with pytest.raises(LogCorrupt, match=f"offsets 0 to 1000: the segment {segment.path}"):
                    call()
            assert other.read(SHARD, 1000)[0].count == 1, "what is not damaged can be read"
            assert other.append([source.frame(TOPIC, 1)]).events == 1
        finally:
            other.close()


def _damage(path: pathlib.Path, how: str) -> None:
    data, table = path.read_bytes(), import_pyarrow().parquet.read_table(path)
    path.unlink()
    if how == "swapped":  # a good file with other events
        table = table.slice(0, table.num_rows - 1)
        import_pyarrow().parquet.write_table(table, path, write_page_checksum=True)
    elif how == "aged":  # one of another format
        import_pyarrow().parquet.write_table(table.drop_columns(["version"]), path, write_page_checksum=True)
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif how == "cut":
        path.write_bytes(data[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "directory":
        os.mkdir(path)
