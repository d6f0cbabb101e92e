"""The set of samples of a name-space, with a digest that is kept up to date and does not depend on order.

Instances are spread over a fixed number of buckets.  Each bucket has a digest, the sum of those of its samples, so that
two services find out which buckets differ by comparing a few kilobytes, and move only those.

A bucket is packed, a `SampleBatch`, or spread out, a dict by instance, or both; in a set with a `Shelf` it is on disk.
Whole buckets are taken over, given and stored packed; one is spread out when it is read or changed, and packed again
when it was not used for a while (`pack_idle`).  So a set that rests takes a fraction of the memory, and aligning
another service with it moves bytes.

Deletions of history are part of the set: ``Deletion("orders/#", t)`` keeps every sample of those topics that is not
newer than ``t`` out of it, for as long as the deletion is remembered, wherever such a sample may come from.  From a set
on disk such samples leave some buckets at a time (`clean_some`): whoever gives samples away asks `is_deleted`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from durability_service.core.sets.batches import BucketSummary, SampleBatch
from durability_service.core.sets.buckets import Instances, MemoryBucket
from durability_service.core.sets.samples import (
    DIGEST_BYTES,
    DIGEST_MODULUS,
    InstanceKey,
    Sample,
    bucket_of,
    digest_value,
    newest_first,
)
from durability_service.core.sets.stored_buckets import Shelf, StoredBucket
from pubsub_api.core.topics import matches

DepthOf = Callable[[str], int]
"""Topic -> how many samples per instance are kept."""
_IDLE_BUCKETS = 64
"""Buckets looked at in one call of `SampleSet.pack_idle`."""


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


Buckets = list[MemoryBucket] | list[StoredBucket]


def _empty(buckets: int, shelf: Shelf | None) -> Buckets:
    if shelf is None:
        return [MemoryBucket() for _ in range(buckets)]
    return [StoredBucket(shelf, number) for number in range(buckets)]


class SampleSet:
    """What a service holds of one name-space.  On disk when it has a ``shelf``.  Not thread-safe."""

    def __init__(self, buckets: int, depth_of: DepthOf, shelf: Shelf | None = None) -> None:
        self._depth_of = depth_of
        self._depths: dict[str, int] = {}
        self._shelf = shelf
        self._buckets = _empty(buckets, shelf)
        self._to_clean: list[int] = []
        """Buckets that may have what was deleted, the next one last."""
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
        return self._buckets[bucket_of(instance, len(self._buckets))].get(instance)

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

    def is_cold(self, number: int) -> bool:
        """Whether a bucket must be read from disk to look into it."""
        return self._buckets[number].is_cold()

    def size_of(self, number: int) -> int:
        """How many samples there are in a bucket, about: each instance counts once where they are spread out."""
        return self._buckets[number].size()

    def filled(self) -> list[int]:
        """The buckets that are not empty."""
        return [number for number in range(len(self._buckets)) if not self._buckets[number].is_empty()]

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
        present = bucket.get(instance)
        gone: tuple[Sample, ...] = ()
        kept: tuple[Sample, ...] = (sample,)
        if present:
            kept = self._kept_with(sample, present)
            if kept == present:
                return None
            gone = present if len(kept) == 1 else tuple(one for one in present if one not in kept)
        # As `_changed` does, in line: this is the path of every live sample.
        change = digest_value(sample[8])
        for one in gone:
            change -= digest_value(one[8])
        bucket.put(instance, kept, change, 1 - len(gone))
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
        present = bucket.get(instance)
        added = [sample for sample in samples if sample not in present]
        removed = [sample for sample in present if sample not in samples]
        change = sum(digest_value(sample[8]) for sample in added) - sum(digest_value(sample[8]) for sample in removed)
        bucket.put(instance, samples, change, len(added) - len(removed))
        self._total = (self._total + change) % DIGEST_MODULUS
        self.count += len(added) - len(removed)
        self.newest = max([self.newest, *(sample[3] for sample in added)])
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
        self._came(batch.digest, batch.count, batch.newest)
        return True

    def _came(self, digest: int, count: int, newest: int) -> None:
        """A bucket that was empty holds this now."""
        self.count += count
        self.newest = max(self.newest, newest)
        self._total = (self._total + digest) % DIGEST_MODULUS

    def clear(self) -> None:
        """Hold no samples.  Deletions stay."""
        for bucket in self._buckets:
            if isinstance(bucket, StoredBucket):
                bucket.forget()
        self._buckets = _empty(len(self._buckets), self._shelf)
        self._to_clean = []
        self._total = sum(one.digest for one in self._deletions) % DIGEST_MODULUS
        self.count = 0

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

    def delete(self, deletion: Deletion) -> list[Sample] | None:
        """Remember a deletion of history and apply it, or leave that to `clean_some`.  Returns what went at once; None
        when it was known."""
        if deletion in self._deletions:
            return None
        self._deletions.add(deletion)
        self._total = (self._total + deletion.digest) % DIGEST_MODULUS
        self._deleted_until = max(self._deleted_until, deletion.timestamp)
        if self._shelf is not None:
            self._to_clean = self.filled()
            return []
        concerned = [bucket for bucket in self._buckets if bucket.may_have(deletion.topic_filter)]
        return self._remove(deletion.covers, concerned)

    @property
    def is_cleaning(self) -> bool:
        """Samples that are deleted may still be here."""
        return bool(self._to_clean)

    def clean_some(self, buckets_max: int) -> list[Sample]:
        """Look through some buckets for what is deleted.  Returns the samples that went."""
        numbers = [self._to_clean.pop() for _ in range(min(buckets_max, len(self._to_clean)))]
        return self._remove(self.is_deleted, [self._buckets[number] for number in numbers])

    def sweep(self, number: int, before: int) -> list[Sample]:
        """Forget, in one bucket, instances whose deletion is older than ``before``, and deletions of history so old,
        unless what they cover may still be here.  Returns the samples that went."""
        for old in [one for one in self._deletions if one.timestamp < before and not self.is_cleaning]:
            self._deletions.discard(old)
            self._total = (self._total - old.digest) % DIGEST_MODULUS
        if not self._deletions:
            self._deleted_until = 0
        bucket = self._buckets[number]
        if not bucket.may_have_deletes(before):
            return []
        return self._remove(lambda sample: sample.is_delete and sample.timestamp < before, (bucket,), newest_only=True)

    def _remove(
        self,
        is_going: Callable[[Sample], bool],
        buckets: Sequence[MemoryBucket | StoredBucket],
        *,
        newest_only: bool = False,
    ) -> list[Sample]:
        gone: list[Sample] = []
        for bucket in buckets:
            for instance, samples in list(bucket.instances().items()):
                considered = samples[:1] if newest_only else samples
                if any(is_going(sample) for sample in considered):
                    left = () if newest_only else tuple(sample for sample in samples if not is_going(sample))
                    gone += self.put(instance, left)[1]
        return gone

    # -- on disk

    def restore(self, number: int, found: BucketSummary) -> None:
        """A bucket of a set on disk is there from an earlier run."""
        bucket = self._buckets[number]
        assert isinstance(bucket, StoredBucket)
        bucket.restore(found)
        self._came(found.digest, found.samples, found.newest)

    def write(self, number: int) -> SampleBatch:
        """What the row of a bucket is to be from now on."""
        bucket = self._buckets[number]
        return bucket.write() if isinstance(bucket, StoredBucket) else bucket.batch()

    def forget_empty(self) -> None:
        """The rows of buckets that are empty now are of no use any more: there will be a new generation."""
        for bucket in self._buckets:
            if isinstance(bucket, StoredBucket) and bucket.is_empty():
                bucket.forget()

    def is_written(self, number: int) -> bool:
        """Whether the row of a bucket is durable and has all that belongs there."""
        bucket = self._buckets[number]
        return isinstance(bucket, StoredBucket) and bucket.is_written

    def when_written(self, numbers: Iterable[int]) -> Callable[[], None]:
        """What to call when what `write` returned of these buckets, one by one, is durable."""
        buckets = [self._buckets[number] for number in numbers]

        def durable() -> None:
            for bucket in buckets:
                if isinstance(bucket, StoredBucket):
                    bucket.written()

        return durable
