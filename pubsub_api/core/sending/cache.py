"""A cache of whole frames, by stream, from which holes are repaired.  It never decodes an event.

The same class serves inside a publisher (its own streams) and alone, near subscribers (the streams of all publishers).
It is bounded three ways: events per stream, bytes in all, age.  The oldest frames leave first, and each one that leaves
is counted.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from pubsub_api.core.frame import Header
from pubsub_api.core.messages import Query, Want
from pubsub_api.core.settings import CacheSettings

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

    def remove(self, first: int) -> bytes | None:
        """The frame that begins with that number, which is not here any more."""
        position = bisect.bisect_left(self.firsts, first, self.start)
        if position == len(self.firsts) or self.firsts[position] != first:
            return None
        del self.firsts[position]
        last, _, frame = self.frames.pop(position)
        self.events -= last - first + 1
        self.head = max((self.frames[place][0] for place in range(self.start, len(self.frames))), default=0)
        return frame

    def in_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Frames that hold any of the numbers of the ranges, which come sorted and may overlap.  Each frame once."""
        position = self.start
        for first, last in ranges:
            position = max(bisect.bisect_right(self.firsts, first, self.start) - 1, position)
            while position < len(self.firsts) and self.firsts[position] <= last:
                if self.frames[position][0] >= first:
                    yield self.frames[position][2]
                position += 1

    def runs(self) -> tuple[list[int], list[int]]:
        """First and last numbers of the ranges without a hole that are here."""
        firsts: list[int] = []
        lasts: list[int] = []
        for position in range(self.start, len(self.firsts)):
            first, last = self.firsts[position], self.frames[position][0]
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        return firsts, lasts

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
            # Forget the arrival times of frames that left by depth, so that this list is bounded by what is kept.
            self._by_age = deque(entry for entry in self._by_age if self._is_kept(entry[1], entry[2]))
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

    def _is_kept(self, key: StreamKey, first: int) -> bool:
        stream = self._streams.get(key)
        return stream is not None and len(stream) > 0 and stream.firsts[stream.start] <= first

    def _evict(self, key: StreamKey, stream: _CachedStream) -> None:
        self.bytes -= len(stream.pop_oldest())
        self.frames -= 1
        self.evicted += 1
        if not len(stream):
            del self._streams[key]

    def discard(self, key: StreamKey, first: int) -> bool:
        """Forget the frame of a stream that begins with that number; True when it was here."""
        stream = self._streams.get(key)
        frame = stream.remove(first) if stream is not None else None
        if stream is None or frame is None:
            return False
        self.bytes -= len(frame)
        self.frames -= 1
        if not len(stream):
            del self._streams[key]
        return True

    def want(self, wants: Iterable[Want]) -> list[bytes]:
        """Frames for the ranges asked for, as far as they are here: each once, however often it is asked for."""
        asked: dict[StreamKey, list[tuple[int, int]]] = {}
        for want in wants:
            key = (want.guid, want.topic)
            if key in self._streams:
                asked.setdefault(key, []).append((want.first, want.last))
        return [frame for key, ranges in asked.items() for frame in self._streams[key].in_ranges(sorted(ranges))]

    def held(self, wants: Sequence[Want]) -> list[int]:
        """Positions of those ranges of which every number is here."""
        runs: dict[StreamKey, tuple[list[int], list[int]]] = {}
        found: list[int] = []
        for position, want in enumerate(wants):
            key = (want.guid, want.topic)
            stream = self._streams.get(key)
            if stream is None:
                continue
            if key not in runs:
                runs[key] = stream.runs()
            firsts, lasts = runs[key]
            at = bisect.bisect_right(firsts, want.first) - 1
            if at >= 0 and want.last <= lasts[at]:
                found.append(position)
        return found

    def known_heads(self, guid: bytes = b"") -> list[tuple[bytes, str, int]]:
        """The highest number seen of every stream, of one publisher or of all."""
        return [(owner, topic, one.head) for (owner, topic), one in self._streams.items() if not guid or owner == guid]

    def history(self, heads: Iterable[tuple[bytes, str, int]], query: Query) -> list[bytes]:
        """Frames of those streams, restricted as the query says, stream by stream, oldest first."""
        streams = [self._streams.get((guid, topic)) for guid, topic, _ in heads]
        return [frame for one in streams if one is not None for frame in one.newest(query.newest, query.since)]
