"""A disk that is slow, and that forgets what it was not yet asked to keep when its service dies.

It is the reference of what `durability_service.storage.store` must do: operations are done in order, each whole or not
at all; after a crash some first part of them was done, perhaps more than was reported, never less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.sets.batches import HEAD_BYTES, SampleBatch, pack_buckets, summary, unpack
from durability_service.core.sets.samples import Sample, bucket_of


@dataclasses.dataclass
class Generation:
    filters: tuple[str, ...] = ()
    is_complete: bool = False
    marks: StoreMarks = StoreMarks()
    samples: dict[bytes, Sample] = dataclasses.field(default_factory=dict)
    """By digest."""
    buckets: int = 1
    rows: dict[int, SampleBatch] = dataclasses.field(default_factory=dict)
    """Buckets as they were last written."""

    def put(self, batches: Mapping[int, SampleBatch]) -> None:
        self.rows |= batches
        for number, batch in batches.items():
            for digest, sample in list(self.samples.items()):
                if bucket_of(sample.instance, self.buckets) == number:
                    del self.samples[digest]
            self.samples |= {sample.digest: sample for sample in unpack(batch)}


class StoreModel:
    """What is on disk, by name-space: the current generation, and one that was set aside while it is filled."""

    def __init__(self) -> None:
        self.current: dict[str, Generation] = {}
        self.backup: dict[str, Generation] = {}

    def do(self, operation: StoreOperation) -> None:
        name = operation.name_space
        current = self.current.get(name)
        if isinstance(operation, BeginFill):
            if current is not None and current.is_complete:
                self.backup[name] = current
            self.current[name] = Generation(operation.filters, buckets=operation.buckets)
            return
        assert current is not None, f"{operation} before anything was begun"
        if isinstance(operation, Fill):
            assert not current.is_complete
            current.put(operation.batches)
            current.put({number: self.backup[name].rows[number] for number in operation.kept})
        elif isinstance(operation, CompleteFill):
            current.is_complete, current.marks = True, operation.marks
            self.backup.pop(name, None)
        elif isinstance(operation, Apply):
            assert current.is_complete, "a change of a set that is not complete"
            current.samples |= {sample.digest: sample for sample in operation.added}
            for sample in operation.removed:
                current.samples.pop(sample.digest, None)
            current.put(operation.batches)
            current.marks = operation.marks or current.marks

    def open(self) -> Mapping[str, Restored]:
        """As after a start: an interrupted fill gives way to what was set aside for it, and all changes are put into
        the buckets."""
        for name, generation in list(self.current.items()):
            if not generation.is_complete and name in self.backup:
                self.current[name] = self.backup.pop(name)
        for generation in self.current.values():
            generation.rows = pack_buckets(generation.samples.values(), generation.buckets)
        return {name: _restored(one) for name, one in self.current.items() if one.is_complete}

    def read(self, name_space: str, number: int) -> SampleBatch:
        """A bucket as it was last written."""
        generations = (self.current.get(name_space), self.backup.get(name_space))
        return next(one.rows[number] for one in generations if one is not None and number in one.rows)


def _restored(found: Generation) -> Restored:
    summaries = {number: summary(batch.content[:HEAD_BYTES]) for number, batch in found.rows.items()}
    return Restored(found.marks, found.filters, summaries)
