"""The set of samples of a name-space, with a digest that is kept up to date and does not depend on order.

Instances are spread over a fixed number of buckets.  Each bucket has a digest, the sum of those of its samples, so that
two services find out which buckets differ by comparing a few kilobytes, and move only those.

Deletions of history are part of the set: ``Deletion("orders/#", t)`` keeps every sample of those topics that is not
newer than ``t`` out of it, for as long as the deletion is remembered, wherever such a sample may come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from durability_service.core.samples import (
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


class SampleSet:
    """What a service holds of one name-space.  Not thread-safe."""

    def __init__(self, buckets: int, depth_of: DepthOf) -> None:
        self._depth_of = depth_of
        self._depths: dict[str, int] = {}
        self._buckets: list[dict[InstanceKey, tuple[Sample, ...]]] = [{} for _ in range(buckets)]
        self._digests = [0] * buckets
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
            for samples in bucket.values():
                yield from samples

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, Sample) and sample in self._of(sample.instance).get(sample.instance, ())

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        """The samples of an instance, newest first."""
        return self._of(instance).get(instance, ())

    def _of(self, instance: InstanceKey) -> dict[InstanceKey, tuple[Sample, ...]]:
        return self._buckets[bucket_of(instance, len(self._buckets))]

    def bucket(self, number: int) -> Instances:
        return self._buckets[number]

    @property
    def bucket_count(self) -> int:
        return len(self._buckets)

    def digest_of(self, number: int) -> bytes:
        """The digest of a bucket."""
        return self._digests[number].to_bytes(DIGEST_BYTES, "big")

    def digests(self) -> dict[int, bytes]:
        """Bucket -> digest, of those that are not empty."""
        return {number: self.digest_of(number) for number, bucket in enumerate(self._buckets) if bucket}

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
        instance = sample[:3]
        number = bucket_of(instance, len(self._buckets))
        bucket = self._buckets[number]
        present = bucket.get(instance)
        if self._deleted_until and self.is_deleted(sample):
            return None
        if present is None:
            bucket[instance] = (sample,)
            self._count(number, (sample,), ())
            return ()
        depth = self._depth(sample[0])
        if sample[3:6] > present[0][3:6]:  # the usual case: newer than all there is
            kept = (sample,) if sample[6] else (sample, *present[: depth - 1])
        else:
            kept = newest_first((*present, sample), depth)
            if kept == present:
                return None
        bucket[instance] = kept
        gone = present if len(kept) == 1 else tuple(one for one in present if one not in kept)
        self._count(number, (sample,), gone)
        return gone

    def _depth(self, topic: str) -> int:
        """How many samples per instance are kept; asked for every sample, so it is remembered."""
        depth = self._depths.get(topic)
        if depth is None:
            depth = self._depths[topic] = self._depth_of(topic)
        return depth

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...]) -> tuple[list[Sample], list[Sample]]:
        """Make these, already in order, the samples of an instance.  Returns what came and what went."""
        number = bucket_of(instance, len(self._buckets))
        bucket = self._buckets[number]
        present = bucket.get(instance, ())
        if not present and samples:
            bucket[instance] = samples
            self._count(number, samples, ())
            return list(samples), []
        added = [sample for sample in samples if sample not in present]
        removed = [sample for sample in present if sample not in samples]
        if samples:
            bucket[instance] = samples
        else:
            bucket.pop(instance, None)
        self._count(number, added, removed)
        return added, removed

    def adopt(
        self, number: int, instances: dict[InstanceKey, tuple[Sample, ...]], digest: bytes
    ) -> list[Sample] | None:
        """Make these, which another set with the same rules kept and which have this digest, the content of an empty
        bucket.  Returns what came; None, and nothing was done, when that is not possible without looking at each."""
        if self._buckets[number] or self._deletions:
            return None
        self._buckets[number] = instances
        samples = [sample for kept in instances.values() for sample in kept]
        self.count += len(samples)
        self.newest = max(self.newest, max((sample[3] for sample in samples), default=0))
        self._digests[number] = digest_value(digest)
        self._total = (self._total + self._digests[number]) % DIGEST_MODULUS
        return samples

    def _count(self, number: int, added: Iterable[Sample], removed: Iterable[Sample]) -> None:
        change = 0
        for sample in added:
            change += digest_value(sample[8])
            self.count += 1
            self.newest = max(self.newest, sample[3])
        for sample in removed:
            change -= digest_value(sample[8])
            self.count -= 1
        self._digests[number] = (self._digests[number] + change) % DIGEST_MODULUS
        self._total = (self._total + change) % DIGEST_MODULUS

    def delete(self, deletion: Deletion) -> list[Sample] | None:
        """Remember a deletion of history and apply it.  Returns what went; None when it was known."""
        if deletion in self._deletions:
            return None
        self._deletions.add(deletion)
        self._total = (self._total + deletion.digest) % DIGEST_MODULUS
        self._deleted_until = max(self._deleted_until, deletion.timestamp)
        return self._remove(deletion.covers, range(len(self._buckets)))

    def sweep(self, number: int, before: int) -> list[Sample]:
        """Forget, in one bucket, instances whose deletion is older than ``before``, and deletions of history so old.
        Returns the samples that went."""
        for old in [one for one in self._deletions if one.timestamp < before]:
            self._deletions.discard(old)
            self._total = (self._total - old.digest) % DIGEST_MODULUS
        if not self._deletions:
            self._deleted_until = 0
        return self._remove(lambda sample: sample.is_delete and sample.timestamp < before, (number,), newest_only=True)

    def _remove(
        self, is_going: Callable[[Sample], bool], numbers: Iterable[int], *, newest_only: bool = False
    ) -> list[Sample]:
        gone: list[Sample] = []
        for number in numbers:
            for instance, samples in list(self._buckets[number].items()):
                considered = samples[:1] if newest_only else samples
                if any(is_going(sample) for sample in considered):
                    left = () if newest_only else tuple(sample for sample in samples if not is_going(sample))
                    gone += self.put(instance, left)[1]
        return gone
