"""What the store holds of a name-space, and what it must be told when the set changes.

Changes are appended on disk, which is quick; finding them there is not, so they stay in memory, too.  For about as many
samples as came and went, buckets are written anew with all their changes, those that have any for longest first; and
for more where changes take too much memory.  Changes that are in the buckets leave memory and disk: what a start has to
read stays in proportion to the memory, and what is written twice to what changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.messages import Epoch
from durability_service.core.namespaces import Kind, NameSpace
from durability_service.core.sets.batches import SampleBatch
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import Sample
from durability_service.core.sets.stored_buckets import BucketMemory, BucketStorage
from durability_service.core.settings import ServiceSettings

_FILL_BUCKETS = 64
"""Buckets per operation while a generation is filled."""
_BUCKET_COST = 32
"""What packing a bucket costs besides its samples: as much as so many of them."""
_WRITTEN_SAMPLES = 8192
"""Samples in the buckets that are written anew with one change, about."""


_topic = operator.itemgetter(0)


class _Repacking:
    """``changes_min``: samples that come and go before anything is packed anew."""

    def __init__(self, changes_min: int, memory: BucketMemory) -> None:
        self._changes_min = changes_min
        self._memory = memory
        self._changes = 0
        self.changed: dict[int, None] = {}
        """Buckets with changes, those that have them longest first."""

    def happened(self, count: int) -> None:
        """So many samples came and went."""
        self._changes += count

    def due(self, size_of: Callable[[int], int]) -> list[int]:
        """The buckets that are to be written anew now."""
        numbers: list[int] = []
        is_full = self._memory.is_full_of_changes and not self._memory.is_full_of_writing
        if self._changes < self._changes_min and not is_full:
            return numbers
        samples = 0
        for number in self.changed:
            if samples >= _WRITTEN_SAMPLES or (self._changes <= 0 and not is_full):
                return numbers
            numbers.append(number)
            size = size_of(number)
            samples += size
            self._changes -= 2 * size + _BUCKET_COST
        self._changes = min(0, self._changes)  # everything is written
        return numbers


class StoredSet:
    """Knows what is on disk of a set, and makes the operations that bring the disk up to the set."""

    def __init__(
        self,
        settings: ServiceSettings,
        space: NameSpace,
        restored: Restored | None,
        *,
        is_persistent: bool,
        memory: BucketMemory,
    ) -> None:
        self._rules = settings.rules
        self._space = space
        self._is_persistent = is_persistent
        self._persistent_topics: dict[str, bool] = {}
        self._memory = memory
        self._repacking = _Repacking(settings.repack_changes, memory)
        storage = BucketStorage(space.name, memory, self._is_persistent_topic, self._repacking.changed)
        self.set = SampleSet(settings.buckets, settings.rules.depth_of, storage if is_persistent else None)
        """Of all samples, those included that are never on disk."""
        self.has_base = restored is not None
        """A complete set was on disk; until the name-space is complete, it is what the set holds."""
        marks = restored.marks if restored else StoreMarks()
        self.marked = (marks.epoch, marks.lineage)
        """Epoch and lineage as the store was last told, ours or the next ones."""
        self.base_alive = marks.alive
        """When the set on disk was last maintained."""
        if restored:
            self._load(restored)
        self._leaves_deleted = False
        """The disk may have deleted samples of topics that only an earlier run kept there: a start looks for them."""
        self.quality = self.set.newest
        """How good the set on disk is, for the election."""

    def _load(self, restored: Restored) -> None:
        for number, summary in restored.buckets.items():
            if self._is_persistent:
                self.set.restore(number, summary)
            else:  # it was persistent in an earlier run
                self.set.adopt(number, self._memory.read(self._space.name, number))
        for deletion in restored.marks.deletions:
            self.set.delete(deletion, is_cleaned=restored.marks.is_clean)

    @property
    def buckets_read(self) -> int:
        """How many buckets were read from disk, of all name-spaces."""
        return self._memory.reads

    def of(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those of the samples that go to disk."""
        if not self._is_persistent or not samples:
            return []
        if all(map(self._is_persistent_topic, set(map(_topic, samples)))):
            return list(samples)
        return [sample for sample in samples if self._is_persistent_topic(sample[0])]

    def _is_persistent_topic(self, topic: str) -> bool:
        """Asked often, so it is remembered."""
        known = self._persistent_topics.get(topic)
        if known is None:
            known = self._persistent_topics[topic] = self._rules.kind_of(topic) is Kind.PERSISTENT
        return known

    def marks(self, epoch: Epoch, lineage: tuple[Epoch, ...], alive: int) -> StoreMarks:
        """What the store is to remember from now on."""
        self.marked = (epoch, lineage)
        is_clean = not self.set.is_cleaning and not self._leaves_deleted
        return StoreMarks(epoch, lineage, self.set.deletions, alive, is_clean)

    def clean_some(self, buckets_max: int) -> list[Sample]:
        """Remove deleted samples from so many buckets.  Returns those that the store must remove."""
        gone = self.set.clean_some(buckets_max)
        removed = self.of(gone)
        self._leaves_deleted |= len(removed) < len(gone)
        return removed

    def begin(self) -> list[StoreOperation]:
        """A new generation, to be filled with what comes; until it is complete there is no set to start from but the
        one before."""
        self.has_base = False
        if not self._is_persistent:
            return []
        self.set.forget_empty()
        return [BeginFill(self._space.name, tuple(sorted(self._space.filters)), self.set.bucket_count)]

    def fill(self, numbers: Sequence[int]) -> list[StoreOperation]:
        """These buckets, for the generation that was begun."""
        if not self._is_persistent or not numbers:
            return []
        return [Fill(self._space.name, self._batches(numbers))]

    def complete(self, marks: StoreMarks) -> list[StoreOperation]:
        """The generation that was begun is whole."""
        return [CompleteFill(self._space.name, marks)] if self._is_persistent else []

    def whole(self, marks: StoreMarks) -> list[StoreOperation]:
        """A new generation with all there is."""
        if not self._is_persistent:
            return []
        kept = [number for number in self.set.filled() if self.set.is_written(number)]
        others = sorted({*self.set.filled()}.difference(kept))
        return [
            *self.begin(),
            *([Fill(self._space.name, {}, kept)] if kept else []),
            *(
                operation
                for start in range(0, len(others), _FILL_BUCKETS)
                for operation in self.fill(others[start : start + _FILL_BUCKETS])
            ),
            *self.complete(marks),
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
        self._repacking.happened(len(added) + len(removed))
        if repacks:
            numbers += (number for number in self._repacking.due(self.set.size_of) if number not in adopted)
        return [Apply(self._space.name, added, removed, marks, self._batches(numbers))]

    def _batches(self, numbers: Sequence[int]) -> dict[int, SampleBatch]:
        """What the store is to hold of these buckets."""
        return {number: self.set.write(number) for number in numbers}

    def when_durable(self, operations: Iterable[StoreOperation]) -> Callable[[], None]:
        """What to call when these are durable."""
        batches = [one.batches for one in operations if isinstance(one, Apply | Fill)]
        return self.set.when_written(number for some in batches for number in some)
