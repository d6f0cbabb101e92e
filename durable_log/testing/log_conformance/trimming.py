"""Dropping the oldest part of a shard: whole frames, offsets are never given again, and readers are told."""

from __future__ import annotations

import pytest

from durable_log.errors import OffsetTooOld
from durable_log.log_api import LogApi
from durable_log.testing.log_conformance.appending import SHARD, TOPIC, stream
from durable_log.testing.log_conformance.base import LogConformanceBase
from durable_log.testing.sources import Source, check_consistent, read_frames


class TrimConformance(LogConformanceBase):
    def test_what_is_before_the_offset_goes_in_whole_frames(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 4) for _ in range(5)]
        log.append(sent)
        assert log.trim(SHARD, 10) == 8
        state = log.state()[SHARD]
        assert (state.start, state.end, state.bytes) == (8, 20, sum(map(len, sent[2:])))
        assert [one.frame for one in read_frames(log, SHARD)] == sent[2:]
        assert log.trim(SHARD, 8) == 0
        check_consistent(log)

    def test_what_is_gone_is_told_with_the_place_to_go_on(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 4) for _ in range(5)])
        log.trim(SHARD, 8)
        for offset in (0, 7):
            with pytest.raises(OffsetTooOld) as caught:
                log.read(SHARD, offset)
            assert caught.value.start == 8
        assert log.read_stream(source.guid, TOPIC, 1, 12) == [log.read(SHARD, 8)[0].frame]
        assert log.find(SHARD, 0) == 8

    def test_a_shard_that_was_emptied_goes_on_where_it_was(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 4)])
        assert log.trim(SHARD, 1000) == 4
        assert log.read(SHARD, 4) == []
        assert log.state()[SHARD][1:5] == (4, 4, 4, 0)
        assert log.append([source.frame(TOPIC, 4)]).ends == {SHARD: 8}
        assert [one.offset for one in read_frames(log, SHARD)] == [4]

    def test_a_stream_is_remembered_when_its_events_are_gone(self, log: LogApi) -> None:
        source = Source()
        frame = source.frame(TOPIC, 4)
        log.append([frame])
        log.trim(SHARD, 4)
        assert stream(log, source).last == 4
        assert log.append([frame]).events == 0

    def test_other_shards_are_left_alone(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(f"t/{number}") for number in range(50)])
        before = log.state()
        log.trim(1, before[1].end)
        after = log.state()
        assert [one for one in after if one.shard != 1] == [one for one in before if one.shard != 1]
        assert after[1].start == before[1].end
