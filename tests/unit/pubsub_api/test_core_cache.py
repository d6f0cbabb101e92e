"""The cache of frames: what is asked for is found, bounds hold, and nothing leaves without a reason."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pubsub_api.core import frame as frames
from pubsub_api.core.frame import SEQUENCE_MAX, Kind
from pubsub_api.core.messages import Query, Want
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.sending.replies import find
from pubsub_api.core.settings import CacheSettings

GUID = b"g" * 16
OTHER = b"o" * 16


def cache_with(ranges: list[tuple[int, int]], **limits: float) -> FrameCache:
    """A cache of one stream, "a"; the frame of ``first`` to ``last`` is the text of both and came at second first."""
    cache = FrameCache(dataclasses.replace(CacheSettings(), **limits))  # type: ignore[arg-type]
    for first, last in ranges:
        assert cache.store_range((GUID, "a"), first, last, first * 10, name(first, last), float(first))
    return cache


def name(first: int, last: int) -> bytes:
    return b"%d..%d" % (first, last)


def held(cache: FrameCache, first: int = 1, last: int = SEQUENCE_MAX, *, topic: str = "a") -> list[str]:
    return [found.decode() for found in cache.want([Want(GUID, topic, first, last)])]


TENS = [(n, n + 9) for n in range(1, 100, 10)]


def test_a_frame_is_stored_by_its_header() -> None:
    cache = FrameCache(CacheSettings())
    packed = frames.pack(Kind.DATA, GUID, "a", b"\x90", first=5, after=4, count=3, timestamp=9)
    header = frames.unpack(packed, bytes_max=1000)
    assert cache.store(header, packed, 0.0)
    assert not cache.store(header, packed, 1.0), "it was there"
    assert cache.want([Want(GUID, "a", 7, 7)]) == [packed]
    assert (cache.frames, cache.bytes, cache.evicted) == (1, len(packed), 0)
    assert cache.known_heads() == [(GUID, "a", 7)]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (12, 24, ["11..20", "21..30"]),
        (12, SEQUENCE_MAX, [f"{n}..{n + 9}" for n in range(11, 100, 10)]),
        (1, 24, ["1..10", "11..20", "21..30"]),
        (20, 21, ["11..20", "21..30"]),
        (20, 20, ["11..20"]),
        (100, 100, ["91..100"]),
        (101, 200, []),
        (1, SEQUENCE_MAX, [f"{n}..{n + 9}" for n in range(1, 100, 10)]),
    ],
)
def test_ranges(first: int, last: int, expected: list[str]) -> None:
    assert held(cache_with(TENS), first, last) == expected
    assert held(cache_with(TENS[::-1]), first, last) == expected, "whatever the order of arrival"


def test_wants_of_several_streams_come_in_the_order_asked() -> None:
    cache = cache_with(TENS[:2])
    cache.store_range((OTHER, "a"), 1, 1, 0, b"other", 0.0)
    cache.store_range((GUID, "b"), 1, 1, 0, b"b", 0.0)
    wants = [Want(GUID, "b"), Want(OTHER, "a", 1, 1), Want(OTHER, "b"), Want(GUID, "a", 1, 1)]
    assert cache.want(wants) == [b"b", b"other", b"1..10"]


def test_a_frame_is_found_once_however_often_it_is_asked_for() -> None:
    cache = cache_with(TENS)
    asked = [Want(GUID, "a", 1, 100)] * 500 + [Want(GUID, "a", n, n) for n in range(100, 0, -1)]
    assert cache.want(asked) == [name(*ten) for ten in TENS]
    assert cache.want([Want(GUID, "a", 3, 3), Want(GUID, "a", 15, 22), Want(GUID, "a", 7, 8)]) == [
        b"1..10",
        b"11..20",
        b"21..30",
    ]


def test_a_hole_is_not_filled() -> None:
    cache = cache_with([(1, 3), (7, 9)])
    assert held(cache, 2, 8) == ["1..3", "7..9"]
    assert held(cache, 4, 6) == []


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 20, True), (5, 15, True), (20, 20, True), (1, 21, False), (25, 25, False), (31, 40, True), (15, 35, False)],
)
def test_whether_a_range_is_held_whole(first: int, last: int, expected: bool) -> None:
    cache = cache_with([(11, 20), (1, 10), (31, 40)])
    assert cache.held([Want(OTHER, "a", first, last), Want(GUID, "a", first, last)]) == [1] * expected


def test_duplicates_are_refused_and_change_nothing() -> None:
    cache = cache_with(TENS)
    before = (cache.frames, cache.bytes, cache.evicted, held(cache))
    for first, last in TENS:
        assert not cache.store_range((GUID, "a"), first, last, 0, b"other bytes", 500.0)
    assert (cache.frames, cache.bytes, cache.evicted, held(cache)) == before


def test_newest_and_since() -> None:
    cache = cache_with(TENS)
    cache.store_range((OTHER, "b/c"), 1, 1, 10**6, b"other", 100.0)

    def history(**fields: object) -> list[bytes]:
        return list(find(cache, Query(id=1, history=True, **fields)).frames)  # type: ignore[arg-type]

    assert history(topics=["a"], newest=10) == [b"91..100"]
    assert history(topics=["a"], newest=11) == [b"81..90", b"91..100"]
    assert history(topics=["a"], newest=1) == [b"91..100"]
    assert history(topics=["a"], since=810) == [b"81..90", b"91..100"]
    assert history(topics=["a"], since=811) == [b"91..100"]
    assert history(topics=["a"], since=811, newest=50) == [b"91..100"]
    assert len(history(topics=["a"])) == 10
    assert history(topics=["b/#"]) == [b"other"]
    assert history(topics=["#"], guid=OTHER) == [b"other"]
    assert history(topics=["#"], newest=1) == [b"91..100", b"other"]
    assert history(topics=["z"]) == []


def test_heads() -> None:
    cache = cache_with([(11, 20), (1, 10)])
    cache.store_range((OTHER, "b/c"), 5, 6, 0, b"other", 1.0)
    assert sorted(cache.known_heads()) == [(GUID, "a", 20), (OTHER, "b/c", 6)]
    assert find(cache, Query(id=1, topics=["#"], guid=OTHER)).heads == [(OTHER, "b/c", 6)]
    assert find(cache, Query(id=1, topics=["b/+"])).heads == [(OTHER, "b/c", 6)]
    assert find(cache, Query(id=1, topics=["+"], guid=OTHER)).heads == []


def test_depth_drops_the_lowest_numbers_of_that_stream_only() -> None:
    cache = cache_with([(1, 10), (11, 20)], events_max=30)
    cache.store_range((OTHER, "a"), 1, 10, 0, b"other", 0.0)
    cache.store_range((GUID, "a"), 21, 30, 0, name(21, 30), 21.0)
    assert cache.evicted == 0
    cache.store_range((GUID, "a"), 31, 31, 0, name(31, 31), 31.0)
    assert held(cache) == ["11..20", "21..30", "31..31"]
    assert cache.want([Want(OTHER, "a")]) == [b"other"]
    assert cache.evicted == 1


def test_a_frame_deeper_than_the_limit_is_kept_alone() -> None:
    cache = cache_with([(1, 5), (6, 100)], events_max=10)
    assert held(cache) == ["6..100"]


def test_bytes_drop_what_came_first_whatever_its_stream() -> None:
    cache = FrameCache(CacheSettings(bytes_max=100))
    for number in range(1, 11):
        cache.store_range((GUID, "ab"[number % 2]), number, number, 0, bytes(20), float(number))
        assert cache.bytes <= 100
    assert (cache.frames, cache.evicted) == (5, 5)
    assert cache.held([Want(GUID, "ab"[n % 2], n, n) for n in range(1, 11)]) == [5, 6, 7, 8, 9]


def test_age_drops_exactly_what_is_too_old() -> None:
    cache = cache_with([(n, n) for n in range(1, 101)], age_max_s=300.0)
    cache.expire(301.0)
    assert cache.evicted == 0, "a frame may be as old as the limit"
    cache.expire(301.5)
    assert held(cache)[0] == "2..2"
    cache.expire(350.0)
    assert held(cache)[0] == "50..50", "what is younger stays"
    assert cache.frames == 51
    cache.expire(1000.0)
    assert (cache.frames, cache.bytes, cache.known_heads()) == (0, 0, [])


def test_age_is_kept_while_frames_are_stored() -> None:
    cache = cache_with([(n, n) for n in range(1, 1001)], age_max_s=10.0)
    assert held(cache)[0] == "990..990"
    assert cache.frames == 11


def test_an_old_stream_does_not_take_a_young_one_along() -> None:
    cache = cache_with([(1, 1)], age_max_s=10.0)
    cache.store_range((GUID, "young"), 1, 1, 0, b"young", 9.0)
    cache.expire(15.0)
    assert held(cache) == []
    assert held(cache, topic="young") == ["young"]


def test_a_stream_that_starts_again_after_it_aged_out_keeps_its_frames() -> None:
    cache = cache_with([(1, 1), (2, 2)], age_max_s=10.0)
    cache.expire(100.0)
    cache.store_range((GUID, "a"), 3, 3, 0, b"3", 100.0)
    cache.expire(105.0)
    assert held(cache) == ["3"]


def test_the_list_of_arrivals_is_bounded_by_what_is_kept() -> None:
    """A stream at its depth limit drops a frame for each that comes: the times of those that left must go too."""
    cache = cache_with([(n, n) for n in range(1, 20_001)], events_max=10, age_max_s=1e9)
    assert cache.frames == 10
    assert len(cache._by_age) <= 2 * cache.frames + 1000
    stream = cache._streams[GUID, "a"]
    assert len(stream.firsts) == len(stream.frames) <= 2 * 10 + 2


class CacheMachine(RuleBasedStateMachine):
    """Frames of three streams come in any order; beside the cache stands a naive list of what is in it."""

    STREAMS = ((GUID, "a"), (GUID, "b"), (OTHER, "a"))
    WIDTH = 3

    @initialize(
        events_max=st.integers(3, 60), bytes_max=st.integers(100, 3000), age_max_s=st.sampled_from((5.0, 20.0, 1e9))
    )
    def start(self, events_max: int, bytes_max: int, age_max_s: float) -> None:
        self.limits = CacheSettings(events_max=events_max, bytes_max=bytes_max, age_max_s=age_max_s)
        self.cache = FrameCache(self.limits)
        self.now = 0.0
        self.kept: dict[tuple[int, int], tuple[float, bytes]] = {}
        """Stream and number of the frame -> when it came, the frame."""
        self.stored = 0
        self.arrivals: dict[int, list[tuple[int, float]]] = {0: [], 1: [], 2: []}
        """Stream -> number and time of everything that ever came."""

    def current(self) -> dict[tuple[int, int], tuple[float, bytes]]:
        """The entries of the model that the cache still has."""
        present = {
            (position, found)
            for position, (guid, topic) in enumerate(self.STREAMS)
            for found in self.cache.want([Want(guid, topic)])
        }
        return {key: entry for key, entry in self.kept.items() if (key[0], entry[1]) in present}

    def settle(self) -> None:
        """Compare what left with the reasons there are, then take it over into the model."""
        after = self.current()
        gone = self.kept.keys() - after.keys()
        too_old = self.now - self.limits.age_max_s
        for position, number in gone:
            assert all(number < other for stream, other in after if stream == position), "a newer one left first"
        events = {position: sum(self.WIDTH for stream, _ in self.kept if stream == position) for position in range(3)}
        has_bytes = sum(len(packed) for _, packed in self.kept.values()) > self.limits.bytes_max
        for position, number in gone:
            # A late frame leaves with those after it.
            has_age = any(came < too_old and number <= other for other, came in self.arrivals[position])
            assert has_bytes or has_age or events[position] > self.limits.events_max, "it left without a reason"
        self.kept = after

    @rule(position=st.integers(0, 2), number=st.integers(0, 40), size=st.integers(1, 60))
    def store(self, position: int, number: int, size: int) -> None:
        first = 1 + number * self.WIDTH
        packed = b"%d/%d/" % (position, first) + bytes(size)
        is_new = self.cache.store_range(self.STREAMS[position], first, first + self.WIDTH - 1, first, packed, self.now)
        assert is_new is ((position, number) not in self.kept)
        if is_new:
            self.stored += 1
            self.kept[position, number] = (self.now, packed)
            self.arrivals[position].append((number, self.now))
            self.settle()

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.cache.expire(self.now)
        self.settle()
        assert all(came >= self.now - self.limits.age_max_s for came, _ in self.kept.values())

    @rule(position=st.integers(0, 2), first=st.integers(1, 130), count=st.integers(1, 30))
    def ask(self, position: int, first: int, count: int) -> None:
        want = Want(*self.STREAMS[position], first, first + count - 1)
        frames_of = {number: packed for (stream, number), (_, packed) in self.kept.items() if stream == position}
        numbers = {1 + frame * self.WIDTH + n: frame for frame in frames_of for n in range(self.WIDTH)}
        wanted = range(first, first + count)
        expected = sorted({numbers[number] for number in wanted if number in numbers})
        assert self.cache.want([want]) == [frames_of[number] for number in expected]
        assert self.cache.held([want]) == [0] * all(number in numbers for number in wanted)

    @rule(newest=st.integers(0, 20), since=st.integers(0, 130))
    def history(self, newest: int, since: int) -> None:
        for position, (guid, topic) in enumerate(self.STREAMS):
            numbers = sorted(number for stream, number in self.kept if stream == position)
            if newest:
                frames_needed = (newest + self.WIDTH - 1) // self.WIDTH
                numbers = numbers[-frames_needed:]
            expected = [self.kept[position, number][1] for number in numbers if 1 + number * self.WIDTH >= since]
            query = Query(id=1, topics=[topic], guid=guid, history=True, newest=newest, since=since)
            assert find(self.cache, query).frames == expected

    @invariant()
    def bounds_hold_and_sums_agree(self) -> None:
        cache = self.cache
        assert cache.frames == len(self.kept)
        assert cache.bytes == sum(len(packed) for _, packed in self.kept.values()) <= self.limits.bytes_max
        assert cache.evicted == self.stored - cache.frames
        for position in range(3):
            depth = sum(stream == position for stream, _ in self.kept)
            assert depth * self.WIDTH <= self.limits.events_max or depth == 1
        assert len(cache._by_age) >= cache.frames


CacheMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestCacheAgainstANaiveModel = CacheMachine.TestCase
