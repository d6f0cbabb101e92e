"""When buckets on disk are packed anew.

Changes are appended on disk, which is quick; reading them at a start is not.  So for about as many samples as came and
went, buckets are packed anew, one after the other, with all changes included.  When the round is through, older changes
are of no use: what a start has to read stays in proportion to the set, and so does what is written twice.
"""

from __future__ import annotations

from durability_service.core.sets.sample_set import SampleSet

_BUCKET_COST = 32
"""What packing a bucket costs besides its samples: as much as so many of them."""


class Repacking:
    """``changes_min``: samples that come and go before anything is packed anew."""

    def __init__(self, samples: SampleSet, changes_min: int) -> None:
        self._set = samples
        self._changes_min = changes_min
        self._next = 0
        self._changes = 0

    def changed(self, count: int) -> None:
        """So many samples came and went."""
        self._changes += count

    def due(self) -> list[int]:
        """The buckets that are to be packed anew now."""
        numbers: list[int] = []
        if self._changes < self._changes_min:
            return numbers
        while self._changes > 0 and len(numbers) < self._set.bucket_count:
            numbers.append(self._next)
            self._changes -= 2 * self._set.size_of(self._next) + _BUCKET_COST
            self._next = (self._next + 1) % self._set.bucket_count
        return numbers
