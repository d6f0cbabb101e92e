"""Lifespans: samples that are worth nothing after some time leave the set by themselves.

Each service goes by its own clock.  Buckets are looked through in turn, some at a time, so that a round takes
``expiry_round_s`` however large the set is; one that has not changed and in which nothing can have expired is left
alone.  Where many have to be read from disk a round takes longer: only so many are read at a time.  Code that gives
samples away asks `Expiry.is_expired` and does not wait for the round.  Of an object the oldest samples expire first,
its deletion included, so nothing older can come back by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import ServiceSettings

_NEVER_NS = 1 << 63


class Expiry:
    def __init__(self, settings: ServiceSettings, samples: SampleSet, now: float) -> None:
        self._settings = settings
        self._set = samples
        self._lifespans: dict[str, int] = {}
        self._bucket = 0
        self._looked_at = now
        self._resting: dict[int, tuple[bytes, int]] = {}
        """Bucket -> its digest when it was last looked through, and when the first sample in it expires."""
        self.expired = 0
        """Samples that left."""

    def _expires_ns(self, sample: Sample) -> int:
        lifespan = self._lifespans.get(sample.topic)
        if lifespan is None:
            lifespan = self._lifespans[sample.topic] = self._settings.rules.lifespan_ns_of(sample.topic)
        return sample.timestamp + lifespan if lifespan else _NEVER_NS

    def is_expired(self, sample: Sample, now_ns: int) -> bool:
        return self._expires_ns(sample) <= now_ns

    def next_deadline(self) -> float:
        if not self._settings.rules.has_lifespans:
            return float("inf")
        buckets = min(self._settings.buckets_per_step, self._set.bucket_count)
        return self._looked_at + self._settings.expiry_round_s * buckets / self._set.bucket_count

    def step(self, now: float, now_ns: int) -> list[Sample]:
        """Look through the buckets whose turn it is.  Returns what went."""
        if now < self.next_deadline():
            return []
        self._looked_at = now
        gone: list[Sample] = []
        cold = self._settings.clean_buckets
        for _ in range(min(self._settings.buckets_per_step, self._set.bucket_count)):
            digest, first_ns = self._resting.get(self._bucket, (b"", 0))
            if now_ns >= first_ns or digest != self._set.digest_of(self._bucket):
                cold -= self._set.is_cold(self._bucket)
                if cold < 0:
                    break
                gone += self._look_through(self._bucket, now_ns)
            self._bucket = (self._bucket + 1) % self._set.bucket_count
        self.expired += len(gone)
        return gone

    def _look_through(self, number: int, now_ns: int) -> Iterable[Sample]:
        gone: list[Sample] = []
        first_ns = _NEVER_NS
        for instance, samples in list(self._set.bucket(number).items()):
            oldest_ns = self._expires_ns(samples[-1])
            if oldest_ns <= now_ns:
                left = tuple(sample for sample in samples if not self.is_expired(sample, now_ns))
                gone += self._set.put(instance, left)[1]
                oldest_ns = self._expires_ns(left[-1]) if left else _NEVER_NS
            first_ns = min(first_ns, oldest_ns)
        self._resting[number] = (self._set.digest_of(number), first_ns)
        return gone
