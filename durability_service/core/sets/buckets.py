"""A bucket of a set in memory: packed as a batch, or unpacked as a dict by instance, or both.

`StoredBucket` (`durability_service.core.sets.stored_buckets`) has the same methods, for a set on disk.
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
        """It was read or changed since the last `pack_idle`."""
        self.digest = 0
        """The sum of the digests of its samples."""

    def is_empty(self) -> bool:
        return not self._instances if self._batch is None else not self._batch.count

    def size(self) -> int:
        """The number of samples; a lower bound of it where the bucket is not packed."""
        return self._batch.count if self._batch is not None else len(self._instances or ())

    def needs_read(self) -> bool:
        """Whether `instances` would have to read from disk."""
        return False

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        """The samples of an instance, newest first."""
        return self.instances().get(instance, ())

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...], digest: int, _count: int) -> None:
        """Replace the samples of an instance; an empty tuple removes it.

        ``digest`` and ``_count`` are the changes of the bucket's digest and of its number of samples.
        """
        instances = self.instances()
        if samples:
            instances[instance] = samples
        else:
            instances.pop(instance, None)
        self._batch = None
        self.digest = (self.digest + digest) % DIGEST_MODULUS

    def instances(self) -> dict[InstanceKey, tuple[Sample, ...]]:
        """All samples, by instance.  Stays unpacked until `pack_idle` finds it unused."""
        self._is_used = True
        if self._instances is None:
            assert self._batch is not None
            self._instances = by_instance(unpack(self._batch))
        return self._instances

    def samples(self) -> Iterable[Sample]:
        """All samples.  A packed bucket stays packed."""
        if self._instances is None:
            assert self._batch is not None
            return unpack(self._batch)
        return itertools.chain.from_iterable(self._instances.values())

    def batch(self) -> SampleBatch:
        """All samples, packed."""
        if self._batch is None:
            self._batch = pack(list(self.samples()), self.digest)
        return self._batch

    def fill(self, batch: SampleBatch) -> None:
        """Take over the content of a batch.  The bucket must be empty."""
        self._batch, self._instances, self.digest = batch, None, batch.digest

    def pack_idle(self) -> int:
        """Pack the bucket if it was not used since the last call.  Returns how many instances were packed."""
        is_used, self._is_used = self._is_used, False
        if is_used or self._instances is None:
            return 0
        packed = len(self._instances) if self._batch is None else 0
        self.batch()
        self._instances = None
        return packed

    def may_have_deletes(self, before: int) -> bool:
        """Whether it may have deletions of instances that are older than ``before``."""
        return self._instances is not None or 0 < self.batch().first_delete < before

    def may_have(self, topic_filter: str) -> bool:
        """Whether it may have samples whose topics the filter selects."""
        if self._instances is not None:
            return bool(self._instances)
        return any(matches(topic_filter, topic) for topic in self.batch().topics)
