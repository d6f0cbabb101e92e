"""Reading by offset, by stream and by time, within limits; waiting for more."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from durable_log.log_api import LogApi
from durable_log.testing.log_conformance.appending import SHARD, TOPIC
from durable_log.testing.log_conformance.base import SHARDS, LogConformanceBase
from durable_log.testing.sources import Source, read_frames
from pubsub_api.errors import UsageError
from pubsub_api.testing.receivers import WAIT_S


class ReadConformance(LogConformanceBase):
    def test_an_empty_log_says_so(self, log: LogApi) -> None:
        assert log.shards == SHARDS
        assert [(one.shard, one.start, one.sealed, one.end, one.bytes) for one in log.state()] == [
            (shard, 0, 0, 0, 0) for shard in range(SHARDS)
        ]
        assert log.read(0, 0) == []
        assert log.streams(0) == []
        assert log.find(0, 0) == 0
        assert log.segments() == []

    def test_a_read_begins_with_the_frame_that_covers_the_offset(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 4) for _ in range(3)])
        for offset in range(12):
            assert [one.offset for one in log.read(SHARD, offset)] == [0, 4, 8][offset // 4 :]

    def test_at_the_end_and_beyond_there_is_nothing(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC, 4)])
        assert log.read(SHARD, 4) == []
        assert log.read(SHARD, 400) == []

    def test_a_read_keeps_the_limits_but_for_one_frame(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 4) for _ in range(10)]
        log.append(sent)
        assert [one.offset for one in log.read(SHARD, 0, events_max=1)] == [0]
        assert [one.offset for one in log.read(SHARD, 0, events_max=8)] == [0, 4]
        assert [one.offset for one in log.read(SHARD, 0, bytes_max=1)] == [0]
        assert len(log.read(SHARD, 0, bytes_max=sum(map(len, sent[:3])))) == 3
        assert [one.frame for one in read_frames(log, SHARD, events_max=5)] == sent

    def test_shards_do_not_read_each_other(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(f"t/{number}") for number in range(50)])
        for state in log.state():
            assert {one.shard for one in read_frames(log, state.shard)} <= {state.shard}
            assert sum(one.count for one in read_frames(log, state.shard)) == state.end

    def test_a_range_of_a_stream_is_found(self, log: LogApi) -> None:
        source, other = Source(), Source()
        sent = [source.frame(TOPIC, 3) for _ in range(5)]
        log.append([*sent, *(other.frame(TOPIC, 3) for _ in range(5))])
        assert log.read_stream(source.guid, TOPIC, 1, 15) == sent
        assert log.read_stream(source.guid, TOPIC, 5, 7) == sent[1:3]
        assert log.read_stream(source.guid, TOPIC, 15, 99) == sent[4:]
        assert log.read_stream(source.guid, TOPIC, 16, 99) == []
        assert log.read_stream(source.guid, "other", 1, 15) == []
        assert log.read_stream(Source().guid, TOPIC, 1, 15) == []
        assert log.read_stream(source.guid, TOPIC, 1, 15, bytes_max=1) == sent[:1]

    def test_a_range_of_a_stream_is_in_order_even_if_it_came_late(self, log: LogApi) -> None:
        source = Source()
        frames = [source.again(TOPIC, 1 + 2 * number, 2) for number in range(4)]
        log.append([frames[0], frames[3], frames[2], frames[1]])
        assert log.read_stream(source.guid, TOPIC, 1, 8) == frames
        assert log.read_stream(source.guid, TOPIC, 4, 5) == frames[1:3]

    def test_a_time_is_found(self, log: LogApi) -> None:
        source, times = Source(), list[int]()
        for _ in range(20):
            log.append([source.frame(TOPIC, 3)])
            times.append(log.read(SHARD, log.state()[SHARD].end - 1)[0].appended_ns)
        assert times == sorted(times)
        for when in times:
            assert log.find(SHARD, when) == 3 * times.index(when)
            assert log.find(SHARD, when + 1) == 3 * sum(other <= when for other in times)
        assert log.find(SHARD, 0) == 0
        assert log.find(SHARD, times[-1] + 1) == 60

    def test_append_times_are_those_of_a_clock(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC)])
        assert abs(log.read(SHARD, 0)[0].appended_ns - time.time_ns()) < 3600 * 10**9

    def test_bytes_are_those_of_the_frames(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 4) for _ in range(3)]
        log.append(sent)
        assert log.state()[SHARD].bytes == sum(map(len, sent))

    def test_wait_returns_at_once_when_there_is_more(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC, 2)])
        assert log.wait({SHARD: 1}, timeout_s=WAIT_S) is True
        assert log.wait({SHARD: 2}, timeout_s=0) is False
        assert log.wait({}, timeout_s=0) is False

    def test_wait_is_woken_by_an_append(self, log: LogApi) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, dict.fromkeys(range(SHARDS), 0), timeout_s=WAIT_S)
            log.append([Source().frame(TOPIC)])
            assert waiting.result(WAIT_S) is True

    def test_wait_looks_at_no_other_shard(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC)])
        others = {shard: 0 for shard in range(SHARDS) if shard != SHARD}
        assert log.wait(others, timeout_s=0.05) is False

    @pytest.mark.parametrize("shard", [-1, SHARDS, "0", None])
    def test_a_shard_that_is_not_there_is_refused(self, log: LogApi, shard: int) -> None:
        for call in (
            lambda: log.read(shard, 0), lambda: log.find(shard, 0), lambda: log.trim(shard, 0),
            lambda: log.streams(shard), lambda: log.wait({shard: 0}, timeout_s=0),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                call()

    def test_limits_and_offsets_that_make_no_sense_are_refused(self, log: LogApi) -> None:
        for call in (
            lambda: log.read(0, -1), lambda: log.read(0, 0, events_max=0), lambda: log.read(0, 0, bytes_max=0),
            lambda: log.trim(0, -1), lambda: log.wait({0: 0}, timeout_s=-1),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                call()
