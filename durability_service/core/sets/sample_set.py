"""The set of samples of a name-space, with a digest that is always current and does not depend on the order of samples.

Instances are distributed over a fixed number of buckets.  The digest of a bucket is the sum of the digests of its
samples.  Two services find the buckets that differ by comparing a few kilobytes, and move only these buckets.

A bucket is packed (a `SampleBatch`), or unpacked (a dict by instance), or both; in a set with a `BucketStorage` it is
on disk.  Complete buckets are received, sent and stored packed.  A bucket is unpacked when it is read or changed, and
packed again when it was not used for a while (`pack_idle`).  So a set that is not used takes a fraction of the memory,
and another service is aligned with it by copying bytes.

Deletions of history are part of the set: as long as ``Deletion("orders/#", t)`` is remembered, no sample of these
topics that is not newer than ``t`` enters the set.  Samples that are there already leave a set on disk some buckets at
a time (`clean_some`), so code that gives samples to readers must check `is_deleted`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from durability_service.core.sets.batches import BucketSummary, SampleBatch, pack, unpack
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
from durability_service.core.sets.stored_buckets import BucketStorage, StoredBucket
from pubsub_api.core.topics import matches

DepthOf = Callable[[str], int]
"""Topic -> how many samples per instance are kept."""
_IDLE_BUCKETS = 64
"""Buckets that one call of `SampleSet.pack_idle` may pack."""
_TOPICS_NOTED_MAX = 100_000
"""Topics for which a set notes what was deleted of them; a set on disk may have more topics than fit into memory."""


class Deletion(NamedTuple):
    """History of the topics that ``topic_filter`` selects was deleted up to and including ``timestamp``."""

    topic_filter: str
    timestamp: int

    @property
    def digest(self) -> int:
        data = f"{self.timestamp} {self.topic_filter}".encode()
        return digest_value(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest())

    def covers(self, sample: Sample) -> bool:
        return sample.timestamp <= self.timestamp and matches(self.topic_filter, sample.topic)


Buckets = list[MemoryBucket] | list[StoredBucket]


def _empty(buckets: int, storage: BucketStorage | None) -> Buckets:
    if storage is None:
        return [MemoryBucket() for _ in range(buckets)]
    return [StoredBucket(storage, number) for number in range(buckets)]


class SampleSet:
    """All samples of one name-space in one service; on disk if it has a ``storage``.  Not thread-safe."""

    def __init__(self, buckets: int, depth_of: DepthOf, storage: BucketStorage | None = None) -> None:
        self._depth_of = depth_of
        self._depths: dict[str, int] = {}
        self._storage = storage
        self._buckets = _empty(buckets, storage)
        self._to_clean: list[int] = []
        """Buckets that may have deleted samples; the next one to clean is the last."""
        self._idle_next = 0
        self._idle_due = 0.0
        self._total = 0
        self._deletions: dict[str, Deletion] = {}
        """Topic filter -> its newest deletion, which covers those before it.  All have to fit into a message."""
        self._deleted_until = 0
        self._deleted_until_of: dict[str, int] = {}
        """Topic -> up to when its history was deleted, of topics that were asked for since deletions changed: there may
        be many deletions."""
        self.count = 0
        """Samples, deletions of instances included."""
        self.newest = 0
        """The highest timestamp that was ever in the set."""

    # -- reading

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
        """All samples of a bucket, packed."""
        return self._buckets[number].batch()

    def given(self, number: int) -> SampleBatch:
        """The samples of a bucket that are not deleted, packed."""
        batch = self.batch(number)
        left = [sample for sample in unpack(batch) if not self.is_deleted(sample)] if self.is_cleaning else None
        return batch if left is None or len(left) == batch.count else pack(left)

    @property
    def bucket_count(self) -> int:
        return len(self._buckets)

    def digest_of(self, number: int) -> bytes:
        """The digest of a bucket."""
        return self._buckets[number].digest.to_bytes(DIGEST_BYTES, "big")

    def needs_read(self, number: int) -> bool:
        """Whether `bucket` would have to read from disk."""
        return self._buckets[number].needs_read()

    def size_of(self, number: int) -> int:
        """The number of samples in a bucket; a lower bound where it is in memory and not packed."""
        return self._buckets[number].size()

    def filled(self) -> list[int]:
        """The numbers of the buckets that are not empty."""
        return [number for number in range(len(self._buckets)) if not self._buckets[number].is_empty()]

    def digests(self) -> dict[int, bytes]:
        """Bucket -> digest, for buckets that are not empty."""
        return {number: self.digest_of(number) for number in self.filled()}

    @property
    def digest(self) -> bytes:
        """The digest of everything, deletions included.  Equal digests mean equal sets."""
        return self._total.to_bytes(DIGEST_BYTES, "big")

    @property
    def deletions(self) -> frozenset[Deletion]:
        return frozenset(self._deletions.values())

    def is_deleted(self, sample: Sample) -> bool:
        timestamp = sample.timestamp
        return timestamp <= self._deleted_until and timestamp <= self._topic_deleted_until(sample.topic)

    def _topic_deleted_until(self, topic: str) -> int:
        until = self._deleted_until_of.get(topic)
        if until is None:
            if len(self._deleted_until_of) >= _TOPICS_NOTED_MAX:
                self._deleted_until_of.clear()
            found = (one.timestamp for one in self._deletions.values() if matches(one.topic_filter, topic))
            until = self._deleted_until_of[topic] = max(found, default=-1)
        return until

    def kept(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Which of these samples of one instance the set would keep."""
        if self._deleted_until:
            samples = tuple(sample for sample in samples if not self.is_deleted(sample))
        if len(samples) == 1:
            return samples
        return newest_first(samples, self._depth(samples[0].topic)) if samples else ()

    # -- changing

    def add(self, sample: Sample) -> tuple[Sample, ...] | None:
        """Add a sample.  Returns the samples that it replaced; None if the set did not change."""
        if self._deleted_until and self.is_deleted(sample):
            return None
        instance = sample[:3]
        bucket = self._buckets[bucket_of(instance, len(self._buckets))]
        present = bucket.get(instance)
        replaced: tuple[Sample, ...] = ()
        kept: tuple[Sample, ...] = (sample,)
        if present:
            kept = self._kept_with(sample, present)
            if kept == present:
                return None
            replaced = present if len(kept) == 1 else tuple(one for one in present if one not in kept)
        # As in `put`, but faster: every live sample goes through here.
        change = digest_value(sample[8])
        for one in replaced:
            change -= digest_value(one[8])
        bucket.put(instance, kept, change, 1 - len(replaced))
        self._total = (self._total + change) % DIGEST_MODULUS
        self.count += 1 - len(replaced)
        self.newest = max(self.newest, sample[3])
        return replaced

    def _kept_with(self, sample: Sample, present: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """The samples of an instance that are kept when ``sample`` is added to those that are present."""
        depth = self._depth(sample[0])
        if sample[3:6] > present[0][3:6]:  # the usual case: it is the newest
            return (sample,) if depth == 1 or sample[6] else (sample, *present[: depth - 1])
        return newest_first((*present, sample), depth)

    def _depth(self, topic: str) -> int:
        """How many samples per instance are kept.  Cached, because it is needed for every sample."""
        depth = self._depths.get(topic)
        if depth is None:
            depth = self._depths[topic] = self._depth_of(topic)
        return depth

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...]) -> tuple[list[Sample], list[Sample]]:
        """Replace the samples of an instance, newest first.  Returns the samples that were added and removed."""
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
        """Make a batch of another set with the same rules the content of an empty bucket.

        Returns False and does nothing if the bucket is not empty, or if a deletion may cover samples of the batch.
        """
        bucket = self._buckets[number]
        if not bucket.is_empty():
            return False
        if any(matches(topic_filter, topic) for topic_filter in self._deletions for topic in batch.topics):
            return False
        bucket.fill(batch)
        self._count_bucket(batch.digest, batch.count, batch.newest)
        return True

    def _count_bucket(self, digest: int, count: int, newest: int) -> None:
        """Add a bucket that was empty to the totals of the set."""
        self.count += count
        self.newest = max(self.newest, newest)
        self._total = (self._total + digest) % DIGEST_MODULUS

    def clear(self) -> None:
        """Remove all samples.  Deletions stay."""
        for bucket in self._buckets:
            if isinstance(bucket, StoredBucket):
                bucket.forget()
        self._buckets = _empty(len(self._buckets), self._storage)
        self._to_clean = []
        self._total = sum(one.digest for one in self._deletions.values()) % DIGEST_MODULUS
        self.count = 0

    def pack_idle(self, now: float, interval_s: float, *, samples_max: int) -> None:
        """Pack buckets that were not used for a while, about ``samples_max`` samples per interval."""
        if now < self._idle_due:
            return
        self._idle_due = now + interval_s
        packed = 0
        for _ in range(min(_IDLE_BUCKETS, len(self._buckets))):
            packed += self._buckets[self._idle_next].pack_idle()
            self._idle_next = (self._idle_next + 1) % len(self._buckets)
            if packed >= samples_max:
                break

    def delete(self, deletion: Deletion, *, is_cleaned: bool = False) -> list[Sample] | None:
        """Remember a deletion of history.  Returns the samples that were removed; None if it or a newer one was known.

        A set on disk removes none here but in `clean_some`; ``is_cleaned`` says that it has none any more.
        """
        former = self._deletions.get(deletion.topic_filter)
        if former is not None and former.timestamp >= deletion.timestamp:
            return None
        self._deletions[deletion.topic_filter] = deletion
        self._total = (self._total + deletion.digest - (former.digest if former else 0)) % DIGEST_MODULUS
        self._deleted_until = max(self._deleted_until, deletion.timestamp)
        self._deleted_until_of.clear()
        if self._storage is not None:
            if not is_cleaned:
                # Those that wait come first: deletions may come faster than all buckets can be cleaned.
                waiting = set(self._to_clean)
                self._to_clean = [number for number in self.filled() if number not in waiting] + self._to_clean
            return []
        return self._remove(
            deletion.covers, [bucket for bucket in self._buckets if bucket.may_have(deletion.topic_filter)]
        )

    @property
    def is_cleaning(self) -> bool:
        """The set may still have samples that are deleted."""
        return bool(self._to_clean)

    def clean_some(self, buckets_max: int) -> list[Sample]:
        """Remove deleted samples from up to ``buckets_max`` buckets.  Returns them."""
        numbers = [self._to_clean.pop() for _ in range(min(buckets_max, len(self._to_clean)))]
        return self._remove(self.is_deleted, [self._buckets[number] for number in numbers])

    def sweep(self, number: int, before: int) -> list[Sample]:
        """Forget deletions that are older than ``before``: of history, and of instances in one bucket.

        While `is_cleaning`, deletions of history are still needed and stay.  Returns the samples that were removed.
        """
        for old in [one for one in self._deletions.values() if one.timestamp < before and not self.is_cleaning]:
            del self._deletions[old.topic_filter]
            self._total = (self._total - old.digest) % DIGEST_MODULUS
            self._deleted_until_of.clear()
        if not self._deletions:
            self._deleted_until = 0
        bucket = self._buckets[number]
        if not bucket.may_have_deletes(before):
            return []
        return self._remove(lambda sample: sample.is_delete and sample.timestamp < before, (bucket,), newest_only=True)

    def _remove(
        self,
        is_removed: Callable[[Sample], bool],
        buckets: Sequence[MemoryBucket | StoredBucket],
        *,
        newest_only: bool = False,
    ) -> list[Sample]:
        gone: list[Sample] = []
        for bucket in buckets:
            for instance, samples in list(bucket.instances().items()):
                if any(map(is_removed, samples[:1] if newest_only else samples)):
                    left = () if newest_only else tuple(sample for sample in samples if not is_removed(sample))
                    gone += self.put(instance, left)[1]
        return gone

    # -- only of a set on disk

    def _stored(self, number: int) -> StoredBucket:
        bucket = self._buckets[number]
        assert isinstance(bucket, StoredBucket)
        return bucket

    def restore(self, number: int, found: BucketSummary) -> None:
        """The store has this row of a bucket from an earlier run."""
        self._stored(number).restore(found)
        self._count_bucket(found.digest, found.samples, found.newest)

    def write(self, number: int) -> SampleBatch:
        """The content with which the row of a bucket is to be replaced.  The caller has it stored."""
        return self._stored(number).write()

    def forget_empty(self) -> None:
        """Forget the rows of empty buckets, because a new generation is begun."""
        for number in range(len(self._buckets)):
            if self._buckets[number].is_empty():
                self._stored(number).forget()

    def is_written(self, number: int) -> bool:
        """Whether the row of a bucket is durable and has all samples that belong on disk."""
        return self._stored(number).is_written

    def when_written(self, numbers: Iterable[int]) -> Callable[[], None]:
        """A function to call when the contents that `write` returned of these buckets are durable."""
        buckets = [self._stored(number) for number in numbers]

        def durable() -> None:
            for bucket in buckets:
                bucket.written()

        return durable
