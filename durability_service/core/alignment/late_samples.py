"""What came into a complete set later than live: readers that were served before must hear of it.

Sets of services that hear the same publishers differ all the time by what is on its way, so a reconciliation brings
much that comes live a moment later.  What does not come live within ``patience_s`` was lost here, and a reader that
read the set before lacks it.  The same holds for what the bus delivers after it was in trouble.
"""

from __future__ import annotations

from collections.abc import Iterable

from durability_service.core.sets.samples import Sample

_UNHEARD_MAX = 10_000
"""Samples that are waited for.  Where there are more, readers are told without waiting."""


class LateSamples:
    """Of one name-space.  `take` says when readers are to be told."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._unheard: set[bytes] = set()
        self._is_sure = False
        self._due = float("inf")

    def aligned(self, digests: Iterable[bytes], now: float) -> None:
        """These samples came by reconciliation."""
        self._unheard.update(digests)
        if len(self._unheard) > _UNHEARD_MAX:
            self._unheard.clear()
            self._is_sure = True
        if self._unheard or self._is_sure:
            self._due = min(self._due, now + self._patience_s)

    def live(self, samples: Iterable[Sample]) -> None:
        """These came live: they were on their way."""
        if self._unheard:
            self._unheard.difference_update(sample.digest for sample in samples)

    def delayed(self, now: float) -> None:
        """The bus was in trouble: what comes in the next time may be older than what readers were given."""
        self._is_sure = True
        self._due = min(self._due, now + self._patience_s)

    def next_deadline(self) -> float:
        return self._due

    def take(self, now: float) -> bool:
        """Whether readers are to be told now."""
        if now < self._due:
            return False
        is_told = self._is_sure or bool(self._unheard)
        self._unheard.clear()
        self._is_sure = False
        self._due = float("inf")
        return is_told
