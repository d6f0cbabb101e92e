"""A bucket that is in memory: part of a set, packed, or spread out by instance, or both.

What a set needs of a bucket is what the methods of `MemoryBucket` say; those of buckets on disk do the same
(`durability_service.core.sets.stored_buckets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from durability_service.core.sets.batches import EMPTY, SampleBatch, pack, unpack
from durability_service.core.sets.samples import DIGEST_MODULUS, InstanceKey, Sample
from pubsub_api.core.topics import matches

Instances = Mapping[InstanceKey, tuple[Sample, ...]]


def by_instance(samples: Iterable[Sample]) -> dict[InstanceKey, tuple[Sample, ...]]:
    """The samples of each instance, in the order given."""
    found: dict[InstanceKey, tuple[Sample, ...]] = {}
    for sample in samples:
        instance = sample[:3]
        found[instance] = (*found[instance], sample) if instance in found else (sample,)
    return found


class MemoryBucket:
    __slots__ = ("_batch", "_instances", "_is_used", "digest")

    def __init__(self) -> None:
        self._batch: SampleBatch | None = EMPTY
        self._instances: dict[InstanceKey, tuple[Sample, ...]] | None = {}
        self._is_used = False
        """It was read or changed lately."""
        self.digest = 0
        """The sum of the digests of its samples."""

    def is_empty(self) -> bool:
        return not self._instances if self._batch is None else not self._batch.count

    def size(self) -> int:
        """How many samples it has, about."""
        return self._batch.count if self._batch is not None else len(self._instances or ())

    def is_cold(self) -> bool:
        """To look into it means to read from disk."""
        return False

    def instances(self) -> Instances:
        return self._spread()

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        """The samples of an instance, newest first."""
        return self._spread().get(instance, ())

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...], digest: int, _count: int) -> None:
        """Make these the samples of an instance, none to remove it; digest and number of samples change by so much."""
        instances = self._spread()
        if samples:
            instances[instance] = samples
        else:
            instances.pop(instance, None)
        self._batch = None
        self.digest = (self.digest + digest) % DIGEST_MODULUS

    def _spread(self) -> dict[InstanceKey, tuple[Sample, ...]]:
        self._is_used = True
        if self._instances is None:
            assert self._batch is not None
            self._instances = by_instance(unpack(self._batch))
        return self._instances

    def samples(self) -> Iterable[Sample]:
        """All, without spreading it out for good."""
        if self._instances is None:
            assert self._batch is not None
            return unpack(self._batch)
        return itertools.chain.from_iterable(self._instances.values())

    def batch(self) -> SampleBatch:
        """All, packed."""
        if self._batch is None:
            self._batch = pack(list(self.samples()), self.digest)
        return self._batch

    def become(self, batch: SampleBatch) -> None:
        """Hold what is in a batch, and nothing else."""
        self._batch, self._instances, self.digest = batch, None, batch.digest

    def pack_idle(self) -> int:
        """Pack it when it was not used since the last call.  Returns how many samples were packed."""
        is_used, self._is_used = self._is_used, False
        if is_used or self._instances is None:
            return 0
        packed = len(self._instances) if self._batch is None else 0
        self.batch()
        self._instances = None
        return packed

    def may_have_deletes(self, before: int) -> bool:
        """Whether instances in it may have been deleted before that time."""
        return self._instances is not None or 0 < self.batch().first_delete < before

    def may_have(self, topic_filter: str) -> bool:
        """Whether samples of such topics may be in it."""
        if self._instances is not None:
            return bool(self._instances)
        return any(matches(topic_filter, topic) for topic in self.batch().topics)
