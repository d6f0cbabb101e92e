"""What the store holds of a name-space, and what it must be told when the set changes.

Changes are appended on disk, which is quick; reading them at a start is not.  So for about as many samples as came and
went, buckets are packed anew, one after the other, with all changes included.  When the round is through, older changes
are of no use: what a start has to read stays in proportion to the set, and so does what is written twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.messages import Epoch
from durability_service.core.namespaces import Kind, NameSpace
from durability_service.core.sets.batches import SampleBatch, pack, unpack
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import ServiceSettings

_FILL_BUCKETS = 64
"""Buckets per operation while a generation is filled."""
_BUCKET_COST = 32
"""What packing a bucket costs besides its samples: as much as so many of them."""


class _Repacking:
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


class StoredSet:
    """Loads what was on disk into the set, and makes the operations that bring the disk up to the set."""

    def __init__(
        self,
        settings: ServiceSettings,
        space: NameSpace,
        samples: SampleSet,
        restored: Restored | None,
        *,
        is_persistent: bool,
    ) -> None:
        self._rules = settings.rules
        self._space = space
        self._set = samples
        self._is_persistent = is_persistent
        self._persistent_topics: dict[str, bool] = {}
        self._repacking = _Repacking(samples, settings.repack_changes)
        self._has_our_buckets = restored is None or restored.buckets == settings.buckets
        """The set on disk is kept in as many buckets as ours; otherwise it is changed, but never bucket by bucket."""
        self.has_base = restored is not None and restored.is_complete
        """A complete set was on disk; until the name-space is complete, it is what the set holds."""
        marks = restored.marks if restored and self.has_base else StoreMarks()
        self.marked = (marks.epoch, marks.lineage)
        """Epoch and lineage as the store was last told, ours or the next ones."""
        self.base_alive = marks.alive
        """When the set on disk was last maintained."""
        if restored and self.has_base:
            self._load(restored)
        self.quality = samples.newest
        """How good the set on disk is, for the election."""

    def _load(self, restored: Restored) -> None:
        for deletion in restored.marks.deletions:
            self._set.delete(deletion)
        samples = list(restored.samples)
        for number, batch in restored.batches.items():
            if not (self._has_our_buckets and self._set.adopt(number, batch)):
                samples += unpack(batch)
        for sample in samples:
            self._set.add(sample)

    @property
    def has_usable_base(self) -> bool:
        """The set on disk can be changed bucket by bucket."""
        return self.has_base and self._has_our_buckets

    def of(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those of the samples that go to disk."""
        if not self._is_persistent or not samples:
            return []
        return [sample for sample in samples if self._is_persistent_topic(sample[0])]

    def _is_persistent_topic(self, topic: str) -> bool:
        """Asked for every sample, so it is remembered."""
        known = self._persistent_topics.get(topic)
        if known is None:
            known = self._persistent_topics[topic] = self._rules.kind_of(topic) is Kind.PERSISTENT
        return known

    def marks(self, epoch: Epoch, lineage: tuple[Epoch, ...], alive: int) -> StoreMarks:
        """What the store is to remember from now on."""
        self.marked = (epoch, lineage)
        return StoreMarks(epoch, lineage, self._set.deletions, alive)

    def whole(self, marks: StoreMarks) -> list[StoreOperation]:
        """A new generation with all there is."""
        if not self._is_persistent:
            return []
        self._has_our_buckets = True
        name, numbers = self._space.name, self._set.filled()
        return [
            BeginFill(name, tuple(sorted(self._space.filters)), self._set.bucket_count),
            *(
                Fill(name, self._batches(numbers[start : start + _FILL_BUCKETS]))
                for start in range(0, len(numbers), _FILL_BUCKETS)
            ),
            CompleteFill(name, marks),
        ]

    def change(
        self,
        added: Sequence[Sample] = (),
        removed: Sequence[Sample] = (),
        marks: StoreMarks | None = None,
        adopted: Sequence[int] = (),
        *,
        repacks: bool = True,
    ) -> list[StoreOperation]:
        """A change of the present generation, with buckets that were taken over; none when there is nothing to change.
        The set has changed already.  ``repacks`` is False while the set has what the disk must not have yet."""
        if not self._is_persistent or not (added or removed or marks or adopted):
            return []
        numbers = [*adopted]
        self._repacking.changed(len(added) + len(removed))
        if repacks and self._has_our_buckets:
            numbers += self._repacking.due()
        return [Apply(self._space.name, added, removed, marks, self._batches(numbers))]

    def _batches(self, numbers: Sequence[int]) -> dict[int, SampleBatch]:
        """What the store is to hold of these buckets."""
        return {number: self._of_batch(self._set.batch(number)) for number in numbers}

    def _of_batch(self, batch: SampleBatch) -> SampleBatch:
        if all(map(self._is_persistent_topic, batch.topics)):
            return batch
        return pack(self.of(unpack(batch)))
