"""A disk that is slow, and that forgets what it was not yet asked to keep when its service dies.

It is the reference of what `durability_service.storage.store` must do: operations are done in order, each whole or not
at all; after a crash some first part of them was done, perhaps more than was reported, never less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.sets.batches import SampleBatch, spread, unpack
from durability_service.core.sets.samples import Sample, bucket_of


@dataclasses.dataclass
class Generation:
    filters: tuple[str, ...] = ()
    is_complete: bool = False
    marks: StoreMarks = StoreMarks()
    samples: dict[bytes, Sample] = dataclasses.field(default_factory=dict)
    """By digest."""
    buckets: int = 1

    def put(self, batches: Mapping[int, SampleBatch]) -> None:
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
        """As after a start: an interrupted fill gives way to what was set aside for it."""
        for name, generation in list(self.current.items()):
            if not generation.is_complete and name in self.backup:
                self.current[name] = self.backup.pop(name)
        return {name: _restored(one) for name, one in self.current.items()}


def _restored(found: Generation) -> Restored:
    """Every other bucket whole, as a store finds buckets that were packed after the last change."""
    batches = {number: batch for number, batch in spread(found.samples.values(), found.buckets).items() if number % 2}
    rest = [one for one in found.samples.values() if bucket_of(one.instance, found.buckets) not in batches]
    return Restored(found.is_complete, rest, found.marks, found.filters, found.buckets, batches)
