"""Appending: dense offsets, order, and nothing stored twice."""

from __future__ import annotations

import collections
import random
import threading

import pytest

from durable_log.log_api import Appended, LogApi, StreamState, shard_of
from durable_log.testing.log_conformance.base import SHARDS, LogConformanceBase
from durable_log.testing.sources import Source, check_consistent, event_of, numbers, read_events, read_frames
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.errors import FrameError
from pubsub_api.testing.receivers import in_threads

TOPIC = "tenant/port"
SHARD = shard_of(TOPIC, SHARDS)


def stream(log: LogApi, source: Source, topic: str = TOPIC) -> StreamState:
    [found] = [one for one in log.streams(shard_of(topic, SHARDS)) if (one.guid, one.topic) == (source.guid, topic)]
    return found


class AppendConformance(LogConformanceBase):
    def test_frames_come_back_as_they_were_appended(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, count) for count in (1, 5, 2)]
        assert log.append(sent) == Appended(8, 0, {SHARD: 8})
        stored = read_frames(log, SHARD)
        assert [(one.shard, one.offset, one.count, one.skipped) for one in stored] == [
            (SHARD, 0, 1, 0), (SHARD, 1, 5, 0), (SHARD, 6, 2, 0),
        ]  # fmt: skip
        assert [one.frame for one in stored] == sent
        assert [one.event for one in read_events(log, SHARD)] == [event_of(TOPIC, number) for number in range(1, 9)]

    def test_a_topic_is_always_in_the_same_shard(self, log: LogApi) -> None:
        source = Source()
        topics = [f"a/{number}" for number in range(20)]
        log.append([source.frame(topic) for topic in topics for _ in range(2)])
        for topic in topics:
            assert numbers(log, source.guid, topic) == [1, 2]
            assert topic in {one.topic for one in log.streams(shard_of(topic, SHARDS))}
        assert sum(state.end for state in log.state()) == 40
        check_consistent(log)

    def test_offsets_go_on_from_call_to_call(self, log: LogApi) -> None:
        source = Source()
        ends = [log.append([source.frame(TOPIC, 3)]).ends[SHARD] for _ in range(4)]
        assert ends == [3, 6, 9, 12]
        check_consistent(log)

    def test_nothing_is_appended_by_nothing(self, log: LogApi) -> None:
        assert log.append([]) == Appended(0, 0, {})

    def test_appending_again_stores_nothing(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, count) for count in (1, 5, 2)]
        log.append(sent)
        assert log.append(sent) == Appended(0, 8, {})
        assert log.append([*sent[1:], source.frame(TOPIC)]) == Appended(1, 7, {SHARD: 9})
        assert numbers(log, source.guid, TOPIC) == list(range(1, 10))

    def test_the_same_frame_twice_in_one_call_counts_once(self, log: LogApi) -> None:
        frame = Source().frame(TOPIC, 4)
        assert log.append([frame, frame]) == Appended(4, 4, {SHARD: 4})

    def test_of_a_frame_that_is_known_in_part_the_rest_is_stored(self, log: LogApi) -> None:
        source = Source()
        log.append([source.again(TOPIC, 1, 4)])
        assert log.append([source.again(TOPIC, 3, 5)]) == Appended(3, 2, {SHARD: 7})
        last = read_frames(log, SHARD)[-1]
        assert (last.offset, last.count, last.skipped) == (4, 3, 2)
        assert [event.version for event in last.events()] == [5, 6, 7]
        check_consistent(log)

    def test_of_a_frame_whose_middle_is_known_both_ends_are_stored(self, log: LogApi) -> None:
        source = Source()
        log.append([source.again(TOPIC, 4, 3)])
        assert stream(log, source).missing == ((1, 3),)
        assert log.append([source.again(TOPIC, 2, 8)]) == Appended(5, 3, {SHARD: 8})
        assert numbers(log, source.guid, TOPIC) == [4, 5, 6, 2, 3, 7, 8, 9]
        assert stream(log, source) == StreamState(source.guid, TOPIC, 9, ((1, 1),))
        check_consistent(log)

    def test_a_hole_is_remembered_and_filled_late(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 2), source.frame(TOPIC, 2, lose=5)])
        assert stream(log, source) == StreamState(source.guid, TOPIC, 9, ((3, 7),))
        assert log.append([source.again(TOPIC, 4, 2)]) == Appended(2, 0, {SHARD: 6})
        assert stream(log, source).missing == ((3, 3), (6, 7))
        assert log.append([source.again(TOPIC, 3, 5)]) == Appended(3, 2, {SHARD: 9})
        assert stream(log, source) == StreamState(source.guid, TOPIC, 9, ())
        assert sorted(numbers(log, source.guid, TOPIC)) == list(range(1, 10))
        check_consistent(log)

    def test_what_was_sent_before_recording_began_is_missing(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 1, lose=9)])
        assert stream(log, source) == StreamState(source.guid, TOPIC, 10, ((1, 9),))

    def test_what_was_never_seen_is_missing_when_it_is_noted(self, log: LogApi) -> None:
        source, other = Source(), Source()
        log.append([source.frame(TOPIC, 3)])
        log.note_missing([(source.guid, TOPIC, 2), (source.guid, TOPIC, 7), (other.guid, TOPIC, 5)])
        assert [(stream(log, one).last, stream(log, one).missing) for one in (source, other)] == [
            (7, ((4, 7),)), (5, ((1, 5),)),
        ]  # fmt: skip
        assert log.append([source.again(TOPIC, 5, 2), other.again(TOPIC, 1, 6)]).events == 8
        assert [stream(log, one).missing for one in (source, other)] == [((4, 4), (7, 7)), ()]
        assert log.state()[SHARD].end == 11
        log.note_missing([])

    def test_what_was_skipped_on_purpose_is_not_missing(self, log: LogApi) -> None:
        source = Source()
        log.append([source.frame(TOPIC, 2), source.frame(TOPIC, 2, skip=5)])
        assert stream(log, source) == StreamState(source.guid, TOPIC, 9, ())

    def test_a_late_frame_that_skipped_on_purpose_explains_the_hole(self, log: LogApi) -> None:
        source = Source()
        log.append([source.again(TOPIC, 1, 1), source.again(TOPIC, 9, 1)])
        log.append([source.again(TOPIC, 6, 3, after=1)])
        assert stream(log, source).missing == ()

    def test_streams_of_one_topic_do_not_disturb_each_other(self, log: LogApi) -> None:
        one, other = Source(), Source()
        log.append([one.frame(TOPIC, 2), other.frame(TOPIC, 3), one.frame(TOPIC, 1, lose=1)])
        assert [(state.last, state.missing) for state in (stream(log, one), stream(log, other))] == [
            (4, ((3, 3),)), (3, ()),
        ]  # fmt: skip
        check_consistent(log)

    def test_one_bad_frame_and_the_call_stores_nothing(self, log: LogApi) -> None:
        source = Source()
        good = source.frame(TOPIC)
        hello = frames.pack(Kind.HELLO, source.guid, TOPIC, b"\x90", first=1)
        for bad in (b"", b"garbage", good[:-1], hello):
            with pytest.raises(FrameError):
                log.append([good, bad])
        assert log.state()[SHARD].end == 0
        assert log.append([good]).events == 1

    def test_a_signed_frame_is_stored_as_it_is(self, log: LogApi) -> None:
        frame = Source(key=b"secret").frame(TOPIC, 3)
        log.append([frame])
        assert [one.frame for one in log.read(SHARD, 0)] == [frame]
        assert len(log.read(SHARD, 0)[0].events()) == 3

    def test_threads_append_without_gaps_or_doubles(self, log: LogApi) -> None:
        sources = [Source() for _ in range(8)]
        start = threading.Barrier(len(sources))

        def work(number: int) -> int:
            start.wait()
            source = sources[number]
            return sum(log.append([source.frame(f"t/{i % 5}", 3)]).events for i in range(25))

        assert in_threads(len(sources), work) == [75] * 8
        check_consistent(log)
        for source in sources:
            assert numbers(log, source.guid, "t/0") == list(range(1, 16))

    def test_several_recorders_of_the_same_stream_store_it_once(self, log: LogApi) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 2) for _ in range(40)]
        results = in_threads(4, lambda _: [log.append([frame]) for frame in sent])
        total = collections.Counter[str]()
        for appended in (one for part in results for one in part):
            total.update(events=appended.events, duplicates=appended.duplicates)
        assert total == {"events": 80, "duplicates": 3 * 80}
        assert numbers(log, source.guid, TOPIC) == list(range(1, 81))

    @pytest.mark.parametrize("seed", range(5))
    def test_any_order_of_any_pieces_ends_with_everything_once(self, log: LogApi, seed: int) -> None:
        chance = random.Random(seed)
        source = Source()
        pieces = [(first, chance.randint(1, 9)) for first in range(1, 60)]
        chance.shuffle(pieces)
        sent = [source.again(TOPIC, first, count) for first, count in pieces]
        while sent:
            portion = chance.randint(1, 10)
            log.append(sent[:portion])
            sent = sent[portion:]
        last = max(first + count - 1 for first, count in pieces)
        assert sorted(numbers(log, source.guid, TOPIC)) == list(range(1, last + 1))
        assert stream(log, source) == StreamState(source.guid, TOPIC, last, ())
        check_consistent(log)
