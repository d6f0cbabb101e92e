"""A cache of whole frames, by stream, from which holes are repaired.  It never decodes an event.

The same class serves inside a publisher (its own streams) and alone, near subscribers (everybody's streams).  It is
bounded three ways: events per stream, bytes in all, age.  The oldest frames leave first, and each one that leaves is
counted.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator

from pubsub_api.core.frame import Header
from pubsub_api.core.messages import Query, Want
from pubsub_api.core.settings import CacheSettings
from pubsub_api.core.topics import FilterSet

StreamKey = tuple[bytes, str]
_SWEEP_SLACK = 1000


class _CachedStream:
    """Frames of one stream, sorted by first number.  ``start`` frames at the front have left already."""

    __slots__ = ("events", "firsts", "frames", "head", "start")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.frames: list[tuple[int, int, bytes]] = []
        """last number, timestamp, frame"""
        self.start = 0
        self.events = 0
        self.head = 0

    def __len__(self) -> int:
        return len(self.firsts) - self.start

    def insert(self, first: int, last: int, timestamp: int, frame: bytes) -> bool:
        firsts = self.firsts
        if not firsts or first > firsts[-1]:
            firsts.append(first)
            self.frames.append((last, timestamp, frame))
        else:
            position = bisect.bisect_left(self.firsts, first, self.start)
            if position < len(self.firsts) and self.firsts[position] == first:
                return False
            self.firsts.insert(position, first)
            self.frames.insert(position, (last, timestamp, frame))
        self.events += last - first + 1
        self.head = max(self.head, last)
        return True

    def pop_oldest(self) -> bytes:
        first, (last, _, frame) = self.firsts[self.start], self.frames[self.start]
        self.events -= last - first + 1
        self.start += 1
        if self.start * 2 > len(self.firsts):
            del self.firsts[: self.start], self.frames[: self.start]
            self.start = 0
        return frame

    def in_range(self, first: int, last: int) -> Iterator[bytes]:
        """Frames that hold any of the numbers ``first`` to ``last``."""
        position = max(bisect.bisect_right(self.firsts, first, self.start) - 1, self.start)
        while position < len(self.firsts) and self.firsts[position] <= last:
            if self.frames[position][0] >= first:
                yield self.frames[position][2]
            position += 1

    def newest(self, count: int, since: int) -> list[bytes]:
        """The fewest frames that hold the newest ``count`` events (0: all) sent at or after ``since``, oldest first."""
        found: list[bytes] = []
        events = 0
        for position in range(len(self.firsts) - 1, self.start - 1, -1):
            last, timestamp, frame = self.frames[position]
            if timestamp < since or (count and events >= count):
                break
            events += last - self.firsts[position] + 1
            found.append(frame)
        found.reverse()
        return found


class FrameCache:
    """Not thread-safe: the owner serialises calls.  What a query returns may be used after the call, by anyone."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._streams: dict[StreamKey, _CachedStream] = {}
        self._by_age: deque[tuple[float, StreamKey, int]] = deque()
        """When each frame came, its stream and first number; entries of frames that left by depth are swept lazily."""
        self.bytes = 0
        self.frames = 0
        self.evicted = 0

    def store(self, header: Header, frame: bytes, now: float) -> bool:
        """Keep a DATA frame; False when it was there.  Makes room by dropping what is oldest."""
        return self.store_range((header.guid, header.topic), header.first, header.last, header.timestamp, frame, now)

    def store_range(self, key: StreamKey, first: int, last: int, timestamp: int, frame: bytes, now: float) -> bool:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _CachedStream()
        if not stream.insert(first, last, timestamp, frame):
            return False
        settings, by_age = self._settings, self._by_age
        by_age.append((now, key, first))
        self.frames += 1
        self.bytes += len(frame)
        while stream.events > settings.events_max and len(stream) > 1:
            self._evict(key, stream)
        if len(by_age) > 2 * self.frames + _SWEEP_SLACK:
            self._sweep()
        if self.bytes > settings.bytes_max or by_age[0][0] < now - settings.age_max_s:
            self.expire(now)
        return True

    def expire(self, now: float) -> None:
        """Drop what is too old, and the oldest while there is too much.  Call it now and then on an idle cache."""
        oldest_kept = now - self._settings.age_max_s
        by_age = self._by_age
        while by_age and (by_age[0][0] < oldest_kept or self.bytes > self._settings.bytes_max):
            _, key, first = by_age.popleft()
            stream = self._streams.get(key)
            while stream is not None and len(stream) and stream.firsts[stream.start] <= first:
                self._evict(key, stream)

    def _sweep(self) -> None:
        """Forget the arrival times of frames that left by depth, so that this list is bounded by what is kept."""
        self._by_age = deque(entry for entry in self._by_age if self._is_kept(entry[1], entry[2]))

    def _is_kept(self, key: StreamKey, first: int) -> bool:
        stream = self._streams.get(key)
        return stream is not None and len(stream) > 0 and stream.firsts[stream.start] <= first

    def _evict(self, key: StreamKey, stream: _CachedStream) -> None:
        self.bytes -= len(stream.pop_oldest())
        self.frames -= 1
        self.evicted += 1
        if not len(stream):
            del self._streams[key]

    def want(self, wants: Iterable[Want]) -> list[bytes]:
        """Frames for the ranges asked for, as far as they are here."""
        found: list[bytes] = []
        for want in wants:
            stream = self._streams.get((want.guid, want.topic))
            if stream is not None:
                found.extend(stream.in_range(want.first, want.last))
        return found

    def history(self, query: Query) -> list[bytes]:
        """Frames of every stream the query selects, stream by stream, oldest first."""
        selected = FilterSet(query.topics)
        found: list[bytes] = []
        for (guid, topic), stream in self._streams.items():
            if (not query.guid or guid == query.guid) and selected.match(topic):
                found.extend(stream.newest(query.newest, query.since))
        return found

    def heads(self, query: Query) -> list[tuple[bytes, str, int]]:
        """The highest number seen of every stream the query selects."""
        selected = FilterSet(query.topics)
        return [
            (guid, topic, stream.head)
            for (guid, topic), stream in self._streams.items()
            if (not query.guid or guid == query.guid) and selected.match(topic)
        ]

    def __contains__(self, want: Want) -> bool:
        """Whether every number of the range is here."""
        stream = self._streams.get((want.guid, want.topic))
        if stream is None:
            return False
        expected = want.first
        position = max(bisect.bisect_right(stream.firsts, expected, stream.start) - 1, stream.start)
        while position < len(stream.firsts) and stream.firsts[position] <= expected <= want.last:
            expected = max(expected, stream.frames[position][0] + 1)
            position += 1
        return expected > want.last
