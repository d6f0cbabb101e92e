"""The set of samples of a name-space, with a digest that is kept up to date and does not depend on order.

Instances are spread over a fixed number of buckets.  Each bucket has a digest, the sum of those of its samples, so that
two services find out which buckets differ by comparing a few kilobytes, and move only those.

A bucket is packed, a `SampleBatch`, or spread out, a dict by instance, or both.  Whole buckets are taken over, given
and stored packed; one is spread out when it is read or changed, and packed again when it was not used for a while
(`pack_idle`).  So a set that rests takes a fraction of the memory, and aligning another service with it moves bytes.

Deletions of history are part of the set: ``Deletion("orders/#", t)`` keeps every sample of those topics that is not
newer than ``t`` out of it, for as long as the deletion is remembered, wherever such a sample may come from.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from durability_service.core.sets.batches import EMPTY, SampleBatch, pack, unpack
from durability_service.core.sets.samples import (
    DIGEST_BYTES,
    DIGEST_MODULUS,
    InstanceKey,
    Sample,
    bucket_of,
    digest_value,
    newest_first,
)
from pubsub_api.core.topics import matches

Instances = Mapping[InstanceKey, tuple[Sample, ...]]
DepthOf = Callable[[str], int]
"""Topic -> how many samples per instance are kept."""
_IDLE_BUCKETS = 64
"""Buckets looked at in one call of `SampleSet.pack_idle`."""


def by_instance(samples: Iterable[Sample]) -> dict[InstanceKey, tuple[Sample, ...]]:
    """The samples of each instance, in the order given."""
    found: dict[InstanceKey, tuple[Sample, ...]] = {}
    for sample in samples:
        instance = sample[:3]
        found[instance] = (*found[instance], sample) if instance in found else (sample,)
    return found


class Deletion(NamedTuple):
    """History of the topics that ``topic_filter`` selects was deleted up to ``timestamp``, included."""

    topic_filter: str
    timestamp: int

    @property
    def digest(self) -> int:
        data = f"{self.timestamp} {self.topic_filter}".encode()
        return digest_value(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest())

    def covers(self, sample: Sample) -> bool:
        return sample.timestamp <= self.timestamp and matches(self.topic_filter, sample.topic)


class _Bucket:
    """Part of a set: packed, or spread out, or both."""

    __slots__ = ("_batch", "_instances", "digest", "is_used")

    def __init__(self) -> None:
        self._batch: SampleBatch | None = EMPTY
        self._instances: dict[InstanceKey, tuple[Sample, ...]] | None = {}
        self.digest = 0
        self.is_used = False
        """It was read or changed lately."""

    def is_empty(self) -> bool:
        return not self._instances if self._batch is None else not self._batch.count

    def size(self) -> int:
        return self._batch.count if self._batch is not None else len(self._instances or ())

    def instances(self) -> dict[InstanceKey, tuple[Sample, ...]]:
        """To look at, and to change: then call `changed`."""
        self.is_used = True
        if self._instances is None:
            assert self._batch is not None
            self._instances = by_instance(unpack(self._batch))
        return self._instances

    def changed(self, digest: int) -> None:
        """What `instances` returned is not what it was; its digest has changed by this."""
        self._batch = None
        self.digest = (self.digest + digest) % DIGEST_MODULUS

    def samples(self) -> Iterable[Sample]:
        """All, without spreading it out for good."""
        if self._instances is None:
            assert self._batch is not None
            return unpack(self._batch)
        return itertools.chain.from_iterable(self._instances.values())

    def batch(self) -> SampleBatch:
        if self._batch is None:
            self._batch = pack(list(self.samples()), self.digest)
        return self._batch

    def become(self, batch: SampleBatch) -> None:
        self._batch, self._instances, self.digest = batch, None, batch.digest

    def pack_idle(self) -> int:
        """Pack it when it was not used since the last call.  Returns how many samples were packed."""
        is_used, self.is_used = self.is_used, False
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


class SampleSet:
    """What a service holds of one name-space.  Not thread-safe."""

    def __init__(self, buckets: int, depth_of: DepthOf) -> None:
        self._depth_of = depth_of
        self._depths: dict[str, int] = {}
        self._buckets = [_Bucket() for _ in range(buckets)]
        self._idle_next = 0
        self._idle_due = 0.0
        self._total = 0
        self._deletions: set[Deletion] = set()
        self._deleted_until = 0
        self.count = 0
        """Samples, deletions of instances included."""
        self.newest = 0
        """The highest timestamp that was ever in the set."""

    # -- asking

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sample]:
        for bucket in self._buckets:
            yield from bucket.samples()

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, Sample) and sample in self.get(sample.instance)

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        """The samples of an instance, newest first."""
        return self._buckets[bucket_of(instance, len(self._buckets))].instances().get(instance, ())

    def bucket(self, number: int) -> Instances:
        return self._buckets[number].instances()

    def batch(self, number: int) -> SampleBatch:
        """A bucket, packed."""
        return self._buckets[number].batch()

    @property
    def bucket_count(self) -> int:
        return len(self._buckets)

    def digest_of(self, number: int) -> bytes:
        """The digest of a bucket."""
        return self._buckets[number].digest.to_bytes(DIGEST_BYTES, "big")

    def size_of(self, number: int) -> int:
        """How many samples there are in a bucket, about: each instance counts once where they are spread out."""
        return self._buckets[number].size()

    def filled(self) -> list[int]:
        """The buckets that are not empty."""
        return [number for number, bucket in enumerate(self._buckets) if not bucket.is_empty()]

    def digests(self) -> dict[int, bytes]:
        """Bucket -> digest, of those that are not empty."""
        return {number: self.digest_of(number) for number in self.filled()}

    @property
    def digest(self) -> bytes:
        """The digest of everything, deletions included.  Equal digests mean equal sets."""
        return self._total.to_bytes(DIGEST_BYTES, "big")

    @property
    def deletions(self) -> frozenset[Deletion]:
        return frozenset(self._deletions)

    def is_deleted(self, sample: Sample) -> bool:
        return sample.timestamp <= self._deleted_until and any(one.covers(sample) for one in self._deletions)

    def kept(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """What would be kept of these samples of one instance."""
        if self._deleted_until:
            samples = tuple(sample for sample in samples if not self.is_deleted(sample))
        if len(samples) == 1:
            return samples
        return newest_first(samples, self._depth(samples[0].topic)) if samples else ()

    # -- changing

    def add(self, sample: Sample) -> tuple[Sample, ...] | None:
        """Take a sample in.  Returns the samples that it drove out; None when it changed nothing."""
        if self._deleted_until and self.is_deleted(sample):
            return None
        instance = sample[:3]
        bucket = self._buckets[bucket_of(instance, len(self._buckets))]
        instances = bucket.instances()
        present = instances.get(instance)
        if present is None:
            instances[instance] = (sample,)
            gone: tuple[Sample, ...] = ()
        else:
            kept = self._kept_with(sample, present)
            if kept == present:
                return None
            instances[instance] = kept
            gone = present if len(kept) == 1 else tuple(one for one in present if one not in kept)
        # As `_count` does, in line: this is the path of every live sample.
        change = digest_value(sample[8])
        for one in gone:
            change -= digest_value(one[8])
        bucket.changed(change)
        self._total = (self._total + change) % DIGEST_MODULUS
        self.count += 1 - len(gone)
        self.newest = max(self.newest, sample[3])
        return gone

    def _kept_with(self, sample: Sample, present: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """What is kept of an instance when a sample comes to those that are there."""
        depth = self._depth(sample[0])
        if sample[3:6] > present[0][3:6]:  # the usual case: newer than all there is
            return (sample,) if depth == 1 or sample[6] else (sample, *present[: depth - 1])
        return newest_first((*present, sample), depth)

    def _depth(self, topic: str) -> int:
        """How many samples per instance are kept; asked for every sample, so it is remembered."""
        depth = self._depths.get(topic)
        if depth is None:
            depth = self._depths[topic] = self._depth_of(topic)
        return depth

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...]) -> tuple[list[Sample], list[Sample]]:
        """Make these, already in order, the samples of an instance.  Returns what came and what went."""
        bucket = self._buckets[bucket_of(instance, len(self._buckets))]
        instances = bucket.instances()
        present = instances.get(instance, ())
        added = [sample for sample in samples if sample not in present]
        removed = [sample for sample in present if sample not in samples]
        if samples:
            instances[instance] = samples
        else:
            instances.pop(instance, None)
        self._count(bucket, added, removed)
        return added, removed

    def adopt(self, number: int, batch: SampleBatch) -> bool:
        """Make a batch, as another set with the same rules has it, the content of an empty bucket.  False, and nothing
        was done, when that is not possible without looking at each sample."""
        bucket = self._buckets[number]
        if not bucket.is_empty():
            return False
        if any(matches(one.topic_filter, topic) for one in self._deletions for topic in batch.topics):
            return False
        bucket.become(batch)
        self.count += batch.count
        self.newest = max(self.newest, batch.newest)
        self._total = (self._total + batch.digest) % DIGEST_MODULUS
        return True

    def pack_idle(self, now: float, interval_s: float, *, samples_max: int) -> None:
        """Pack buckets that were not used for a while, about this many samples per interval."""
        if now < self._idle_due:
            return
        self._idle_due = now + interval_s
        packed = 0
        for _ in range(min(_IDLE_BUCKETS, len(self._buckets))):
            packed += self._buckets[self._idle_next].pack_idle()
            self._idle_next = (self._idle_next + 1) % len(self._buckets)
            if packed >= samples_max:
                break

    def _count(self, bucket: _Bucket, added: Sequence[Sample], removed: Sequence[Sample]) -> None:
        """A bucket was changed."""
        change = 0
        for sample in added:
            change += digest_value(sample[8])
            self.newest = max(self.newest, sample[3])
        for sample in removed:
            change -= digest_value(sample[8])
        self.count += len(added) - len(removed)
        bucket.changed(change)
        self._total = (self._total + change) % DIGEST_MODULUS

    def delete(self, deletion: Deletion) -> list[Sample] | None:
        """Remember a deletion of history and apply it.  Returns what went; None when it was known."""
        if deletion in self._deletions:
            return None
        self._deletions.add(deletion)
        self._total = (self._total + deletion.digest) % DIGEST_MODULUS
        self._deleted_until = max(self._deleted_until, deletion.timestamp)
        concerned = [bucket for bucket in self._buckets if bucket.may_have(deletion.topic_filter)]
        return self._remove(deletion.covers, concerned)

    def sweep(self, number: int, before: int) -> list[Sample]:
        """Forget, in one bucket, instances whose deletion is older than ``before``, and deletions of history so old.
        Returns the samples that went."""
        for old in [one for one in self._deletions if one.timestamp < before]:
            self._deletions.discard(old)
            self._total = (self._total - old.digest) % DIGEST_MODULUS
        if not self._deletions:
            self._deleted_until = 0
        bucket = self._buckets[number]
        if not bucket.may_have_deletes(before):
            return []
        return self._remove(lambda sample: sample.is_delete and sample.timestamp < before, (bucket,), newest_only=True)

    def _remove(
        self, is_going: Callable[[Sample], bool], buckets: Iterable[_Bucket], *, newest_only: bool = False
    ) -> list[Sample]:
        gone: list[Sample] = []
        for bucket in buckets:
            for instance, samples in list(bucket.instances().items()):
                considered = samples[:1] if newest_only else samples
                if any(is_going(sample) for sample in considered):
                    left = () if newest_only else tuple(sample for sample in samples if not is_going(sample))
                    gone += self.put(instance, left)[1]
        return gone
