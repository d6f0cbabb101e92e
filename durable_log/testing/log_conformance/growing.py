"""A log that is given more shards while it is used."""

from __future__ import annotations

import contextlib
import threading

import pytest

from durable_log.log_api import LogApi, shard_of
from durable_log.storage.segmented import SegmentedLog
from durable_log.storage.shard_map import is_open
from durable_log.testing.log_child import FRAME_EVENTS, log_process
from durable_log.testing.log_conformance.base import SHARDS, LogConformanceBase
from durable_log.testing.sources import LoggedEvent, Source, read_events
from pubsub_api.core import frame as frames
from pubsub_api.errors import HeliographError, InvalidConfig, UsageError
from pubsub_api.testing.receivers import in_threads

TOPICS = [f"a/{number}" for number in range(20)]
MOVED = [topic for topic in TOPICS if shard_of(topic, SHARDS) != shard_of(topic, 2 * SHARDS)]
"""Topics that another shard takes over when there are twice as many."""


def in_order(log: LogApi) -> list[LoggedEvent]:
    """All events, shard after shard, each when what is to be read before it was read."""
    found: list[LoggedEvent] = []
    done: dict[int, int] = {}
    waiting = {state.shard: state for state in log.state()}
    while waiting:
        ready = [state for state in waiting.values() if is_open(state, lambda shard: done.get(shard, 0))]
        assert ready, "no shard waits for itself"
        for state in ready:
            found += read_events(log, state.shard)
            done[state.shard] = waiting.pop(state.shard).end
    return found


def ordered_numbers(log: LogApi, source: Source, topic: str) -> list[int]:
    return [one.number for one in in_order(log) if (one.guid, one.event.topic) == (source.guid, topic)]


class GrowConformance(LogConformanceBase):
    def test_new_shards_take_topics_over_in_order(self, log: LogApi) -> None:
        source = Source()
        before = [source.frame(topic, 2) for topic in TOPICS for _ in range(2)]
        log.append(before)
        ends = [state.end for state in log.state()]
        assert log.set_shards(2 * SHARDS) is True
        states = log.state()
        assert log.shards == len(states) == 2 * SHARDS
        assert [state.end for state in states] == [*ends, *([0] * SHARDS)]
        assert [state.after for state in states[:SHARDS]] == [()] * SHARDS
        assert [state.after for state in states[SHARDS:]] == [((shard, ends[shard]),) for shard in range(SHARDS)]
        assert log.append(before).events == 0, "what the log has is known in the new shards too"
        log.append([source.frame(topic, 3) for topic in TOPICS])
        for topic in TOPICS:
            assert ordered_numbers(log, source, topic) == list(range(1, 8))
            *parents, home = log.shards_of(topic)
            assert home == shard_of(topic, 2 * SHARDS)
            assert parents == ([home % SHARDS] if topic in MOVED else [])
        check_offsets(log)

    def test_a_log_grows_again_and_skips_generations(self, log: LogApi) -> None:
        source = Source()
        for shards in (SHARDS, 2 * SHARDS, 6 * SHARDS):
            assert log.set_shards(shards) is (shards != SHARDS)
            log.append([source.frame(topic, 2) for topic in TOPICS if shards != 2 * SHARDS or topic == TOPICS[0]])
        for topic in TOPICS[1:]:
            assert ordered_numbers(log, source, topic) == [1, 2, 3, 4]
        assert ordered_numbers(log, source, TOPICS[0]) == [1, 2, 3, 4, 5, 6]
        assert all(len(log.shards_of(topic)) <= 3 for topic in TOPICS)
        check_offsets(log)

    def test_only_a_multiple_is_taken(self, log: LogApi) -> None:
        for shards in (1, SHARDS - 1, SHARDS + 1, 3 * SHARDS // 2, 1024 * SHARDS * SHARDS, 0):
            with pytest.raises(UsageError):
                log.set_shards(shards)
        assert log.set_shards(SHARDS) is False
        assert len(log.state()) == SHARDS

    def test_another_handle_finds_out_by_itself(self, log: LogApi, log_url: str) -> None:
        source, topic = Source(), MOVED[0]
        with contextlib.closing(self.open_log(log_url)) as writer, contextlib.closing(self.open_log(log_url)) as reader:
            writer.append([source.frame(topic)])
            log.set_shards(2 * SHARDS)
            home = shard_of(topic, 2 * SHARDS)
            assert writer.append([source.frame(topic), source.frame(topic)]).ends == {home: 2}
            assert [one.number for one in read_events(reader, home)] == [2, 3]
            assert reader.wait({home: 0}, timeout_s=0) is True
            assert reader.read_stream(source.guid, topic, 1, 3) == log.read_stream(source.guid, topic, 1, 3)
            assert len(reader.state()) == reader.shards == 2 * SHARDS
        with contextlib.closing(self.open_log(log_url)) as noting:
            noting.note_missing([(source.guid, topic, 5)])
            assert [one.missing for one in noting.streams(home) if one.guid == source.guid] == [((4, 5),)]
            assert source.guid not in {one.guid for one in noting.streams(home % SHARDS)}

    def test_a_former_number_of_shards_opens_the_log(self, log: LogApi, log_url: str) -> None:
        log.set_shards(2 * SHARDS)
        for shards in (SHARDS, 2 * SHARDS):
            with contextlib.closing(self.open_log(log_url.replace(f"shards={SHARDS}", f"shards={shards}"))) as other:
                assert other.shards == 2 * SHARDS
        with pytest.raises(InvalidConfig, match=f"has {2 * SHARDS} shards, not {3 * SHARDS}"):
            self.open_log(log_url.replace(f"shards={SHARDS}", f"shards={3 * SHARDS}"))

    def test_a_stream_is_read_across_shards(self, log: LogApi) -> None:
        source, topic = Source(), MOVED[0]
        log.append([source.frame(topic, 2), source.frame(topic, 2, lose=2)])
        log.set_shards(2 * SHARDS)
        log.append([source.frame(topic, 3), source.again(topic, 3, 2)])  # the late ones too go to the new shard
        found = log.read_stream(source.guid, topic, 1, 100)
        assert [frames.unpack(one, bytes_max=1 << 20).first for one in found] == [1, 3, 5, 7]
        if isinstance(log, SegmentedLog):
            self.seal(log)
            assert log.read_stream(source.guid, topic, 1, 100) == found
            assert log.read_stream(source.guid, topic, 4, 5) == found[1:3]

    def seal(self, log: SegmentedLog) -> None:
        pytest.importorskip("pyarrow")
        from durable_log.segments.sealing import Sealer  # noqa: PLC0415

        for shard in range(log.shards):
            Sealer(log).seal(shard)

    def test_sealed_shards_go_on_in_new_ones(self, log: LogApi, log_url: str) -> None:
        assert isinstance(log, SegmentedLog)
        source = Source()
        log.append([source.frame(topic, 4) for topic in TOPICS])
        self.seal(log)
        log.set_shards(2 * SHARDS)
        log.append([source.frame(topic, 3) for topic in TOPICS])
        self.seal(log)
        assert {segment.shard for segment in log.segments()} - set(range(SHARDS))
        with contextlib.closing(self.open_log(log_url)) as other:
            for topic in TOPICS:
                assert ordered_numbers(other, source, topic) == list(range(1, 8))

    def test_streams_that_are_idle_are_forgotten_wherever_they_stand(self, log: LogApi) -> None:
        assert isinstance(log, SegmentedLog)
        source, idle = Source(), Source()
        log.append([idle.frame(topic) for topic in MOVED])
        for state in log.state():
            log.trim(state.shard, state.end)
        log.set_shards(2 * SHARDS)
        log.append([source.frame(topic) for topic in TOPICS])
        assert log.forget_streams(log.now_ns() + 3_600_000_000_000) == len(MOVED)
        left = [one.guid for shard in range(log.shards) for one in log.streams(shard)]
        assert left == [source.guid] * len(TOPICS)

    def test_threads_that_append_meanwhile_lose_no_order(self, log: LogApi) -> None:
        sources = [Source() for _ in range(4)]
        start = threading.Barrier(len(sources) + 1)

        def work(number: int) -> None:
            start.wait()
            if number == len(sources):
                log.set_shards(2 * SHARDS)
                log.set_shards(4 * SHARDS)
                return
            for _ in range(15):
                log.append([sources[number].frame(topic) for topic in TOPICS])

        in_threads(len(sources) + 1, work)
        found = in_order(log)
        for source in sources:
            for topic in TOPICS:
                numbers = [one.number for one in found if (one.guid, one.event.topic) == (source.guid, topic)]
                assert numbers == list(range(1, 16))
        check_offsets(log)

    def test_processes_that_append_meanwhile_lose_no_order(self, log: LogApi, log_url: str) -> None:
        source, told = Source(), dict.fromkeys(TOPICS, 0)
        with log_process(log_url) as child:
            child.receive()
            answer = child.ask(append_without_end=TOPICS, guid=source.guid.hex())
            for number in range(40):
                if number in (10, 25):
                    log.set_shards(2 * log.shards)
                told[answer["topic"]] = answer["last"]
                answer = child.receive()
            child.kill()
        for topic in TOPICS:
            stored = ordered_numbers(log, source, topic)
            assert stored == list(range(1, len(stored) + 1))
            assert len(stored) >= told[topic]
            assert len(stored) % (5 * FRAME_EVENTS) == 0, "an append was stored in part"
        check_offsets(log)

    def test_who_dies_while_it_adds_shards_leaves_a_log_that_works(self, log: LogApi, log_url: str) -> None:
        source = Source()
        for kill_after in (0, 1, 2):
            with log_process(log_url) as child:
                child.receive()
                with contextlib.suppress(HeliographError):
                    answer = child.ask(set_shards_without_end=[2 * SHARDS, 4 * SHARDS, 8 * SHARDS])
                    for _ in range(kill_after):
                        answer = child.receive()
                    assert answer
                child.kill()
            log.append([source.frame(topic) for topic in TOPICS])
            assert len(log.state()) == log.shards
        for topic in TOPICS:
            assert ordered_numbers(log, source, topic) == [1, 2, 3]
        check_offsets(log)


def check_offsets(log: LogApi) -> None:
    """`check_consistent` for a log that has grown: a stream's events may be in several shards."""
    for state in log.state():
        assert [one.offset for one in read_events(log, state.shard)] == list(range(state.start, state.end))
    found = read_events(log)
    names = [(one.guid, one.event.topic, one.number) for one in found]
    assert len(names) == len(set(names)), "an event is there twice"
    streams = [(one.guid, one.topic) for shard in range(log.shards) for one in log.streams(shard)]
    assert len(streams) == len(set(streams)), "a stream stands in two shards"
    assert {name[:2] for name in names} <= set(streams)
