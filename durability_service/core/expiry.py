"""Lifespans: samples that are worth nothing after some time leave the set by themselves.

Each service goes by its own clock.  Buckets are looked through in turn, some at a time, so that a round takes
``expiry_round_s`` however large the set is; whoever gives samples away asks `Expiry.is_expired` and does not wait for
the round.  Of an object the oldest samples expire first, its deletion included, so nothing older can come back by it.
"""

from __future__ import annotations

from durability_service.core.samples import Sample
from durability_service.core.sets import SampleSet
from durability_service.core.settings import ServiceSettings


class Expiry:
    def __init__(self, settings: ServiceSettings, samples: SampleSet, now: float) -> None:
        self._settings = settings
        self._set = samples
        self._lifespans: dict[str, int] = {}
        self._bucket = 0
        self._looked_at = now
        self.expired = 0
        """Samples that left."""

    def is_expired(self, sample: Sample, now_ns: int) -> bool:
        topic = sample.topic
        lifespan = self._lifespans.get(topic)
        if lifespan is None:
            lifespan = self._lifespans[topic] = self._settings.rules.lifespan_ns_of(topic)
        return lifespan > 0 and sample.timestamp + lifespan <= now_ns

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
        for _ in range(min(self._settings.buckets_per_step, self._set.bucket_count)):
            for instance, samples in list(self._set.bucket(self._bucket).items()):
                if self.is_expired(samples[-1], now_ns):
                    left = tuple(sample for sample in samples if not self.is_expired(sample, now_ns))
                    gone += self._set.put(instance, left)[1]
            self._bucket = (self._bucket + 1) % self._set.bucket_count
        self.expired += len(gone)
        return gone
