"""Lifespans: samples leave the set when their lifespan is over.

Each service uses its own clock.  `Expiry.step` checks some buckets at a time, so that a round through all of them takes
``expiry_round_s`` whatever the size of the set.  A bucket is skipped if it has not changed and no sample in it can have
expired.  A round takes longer if many buckets must be read from disk, because each step reads only a few.  Code that
gives samples to readers must check `Expiry.is_expired`.  The oldest samples of an object expire first, its deletion
among them, so expiry never makes an older sample visible again.
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
        self._stepped_at = now
        self._checked: dict[int, tuple[bytes, int]] = {}
        """Bucket -> its digest when it was last checked, and when the first sample in it expires."""
        self.expired = 0
        """Samples that were removed."""

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
        return self._stepped_at + self._settings.expiry_round_s * buckets / self._set.bucket_count

    def step(self, now: float, now_ns: int) -> list[Sample]:
        """Check the next buckets, if that is due.  Returns the samples that were removed."""
        if now < self.next_deadline():
            return []
        self._stepped_at = now
        gone: list[Sample] = []
        reads_left = self._settings.clean_buckets
        for _ in range(min(self._settings.buckets_per_step, self._set.bucket_count)):
            digest, first_ns = self._checked.get(self._bucket, (b"", 0))
            if now_ns >= first_ns or digest != self._set.digest_of(self._bucket):
                reads_left -= self._set.needs_read(self._bucket)
                if reads_left < 0:
                    break
                gone += self._expire(self._bucket, now_ns)
            self._bucket = (self._bucket + 1) % self._set.bucket_count
        self.expired += len(gone)
        return gone

    def _expire(self, number: int, now_ns: int) -> Iterable[Sample]:
        gone: list[Sample] = []
        first_ns = _NEVER_NS
        for instance, samples in list(self._set.bucket(number).items()):
            oldest_ns = self._expires_ns(samples[-1])
            if oldest_ns <= now_ns:
                left = tuple(sample for sample in samples if not self.is_expired(sample, now_ns))
                gone += self._set.put(instance, left)[1]
                oldest_ns = self._expires_ns(left[-1]) if left else _NEVER_NS
            first_ns = min(first_ns, oldest_ns)
        self._checked[number] = (self._set.digest_of(number), first_ns)
        return gone
