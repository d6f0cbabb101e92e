"""Publishers whose clocks are ahead: what they write is kept, and their names are told.

A publisher's timestamps never go back, so one moment of a clock that is ahead stamps everything that it writes until
the right time has caught up.  Refusing all of that would mute it in silence.  So it is kept, in the order in which it
was written; what is wrong with it is that others cannot overwrite the same objects meanwhile, and that is why it is
told.  Beyond `AHEAD_MAX_S` nothing is kept: an object that cannot be written for years is of no use.
"""

from __future__ import annotations

from collections.abc import Iterable

from durability_service.core.sets.samples import Sample

AHEAD_MAX_S = 86_400.0
TELL_AGAIN_S = 60.0
"""A publisher is told of in the log no more often than this, and in the status for this long after its last event."""
_WRITERS_MAX = 100


class ClocksAhead:
    """Which publishers stamped events too far ahead of our clock.  Bounded; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[float, float, float]] = {}
        """Writer -> how far it was ahead, when that was seen last, when it was told of last."""

    def is_kept(self, stamp: int, wall_ns: int) -> bool:
        return stamp - wall_ns <= AHEAD_MAX_S * 1e9

    def note(self, samples: Iterable[Sample], now: float, wall_ns: int) -> list[tuple[str, float]]:
        """These are ahead.  Returns the writers that are to be told of now, and by how many seconds they are ahead."""
        news = []
        farthest: dict[bytes, int] = {}
        for sample in samples:
            farthest[sample.writer] = max(sample.timestamp, farthest.get(sample.writer, 0))
        for writer, stamp in farthest.items():
            ahead_s = round((stamp - wall_ns) / 1e9, 1)
            _, _, told_at = self._seen.pop(writer, (0.0, 0.0, float("-inf")))
            if now - told_at >= TELL_AGAIN_S:
                told_at = now
                news.append((writer.hex(), ahead_s))
            if len(self._seen) >= _WRITERS_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[writer] = (ahead_s, now, told_at)
        return news

    def warnings(self, now: float) -> list[str]:
        return [
            f"publisher {writer.hex()} stamps its events {ahead_s:g} s ahead of our clock: "
            + ("they are not kept" if ahead_s > AHEAD_MAX_S else "others cannot overwrite them meanwhile")
            for writer, (ahead_s, seen_at, _) in self._seen.items()
            if now - seen_at < TELL_AGAIN_S
        ]
