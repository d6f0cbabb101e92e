"""What is done to the set of a name-space as time passes."""

from __future__ import annotations

from durability_service.core.keeping.context import ServiceContext
from durability_service.core.keeping.holding import Holding
from durability_service.core.sets.samples import Sample

_RENEW_S = 60.0
_RENEW_PART = 0.1
"""Of ``cleanup_s``: a set that is maintained is noted as such this often, or every `_RENEW_S`, whichever comes first.
One small row then; and a service is taken to have been away for longer than it was by no more than that."""

_SWEEP_TICKS = 1024
"""A round through all buckets, to forget old deletions, takes so many ticks at most."""


class Upkeep:
    """Forgets what is too old, and has the store know that the set is maintained."""

    def __init__(self, context: ServiceContext, holding: Holding) -> None:
        self._context = context
        self._holding = holding
        self._renew_due = context.now
        self._sweep_next = 0

    def start(self) -> None:
        """Discovery is over: what is on disk was judged, and is renewed from now on."""
        self._renew_due = self._context.now + self._renew_s

    def tick(self) -> None:
        self._sweep()
        self._expire()
        if self._context.now >= self._renew_due:
            self.renew()

    def _sweep(self) -> None:
        """Forget old deletions, some buckets at a time."""
        held, settings = self._holding, self._context.settings
        if not held.is_aligned:
            return
        gone: list[Sample] = []
        for _ in range(max(1, held.set.bucket_count // _SWEEP_TICKS)):
            gone += held.set.sweep(self._sweep_next, self._context.stamp() - int(settings.cleanup_s * 1e9))
            self._sweep_next = (self._sweep_next + 1) % held.set.bucket_count
        held.counters.swept += len(gone)
        self._context.store(held, held.change(removed=held.stored.of(gone)))
        held.set.pack_idle(self._context.now, settings.heartbeat_s, samples_max=settings.idle_samples)

    def _expire(self) -> None:
        """Forget samples whose lifespan is over."""
        held = self._holding
        if held.is_aligned and not held.is_applying:  # what is being applied is told to the store at its end
            gone = held.expiry.step(self._context.now, self._context.stamp())
            self._context.store(held, held.change(removed=held.stored.of(gone)))

    def renew(self) -> None:
        """Have the store remember that the set is maintained: a set that does not change must not look abandoned."""
        held = self._holding
        if self._may_renew:
            self._renew_due = self._context.now + self._renew_s
            marks = held.stored.marks(*held.stored.marked, self._context.stamp())
            self._context.store(held, held.change(marks=marks))

    @property
    def _renew_s(self) -> float:
        return min(_RENEW_S, _RENEW_PART * self._context.settings.cleanup_s)

    @property
    def _may_renew(self) -> bool:
        held = self._holding
        return held.is_persistent and held.is_aligned and not held.is_applying and not held.is_marking

    def next_deadline(self) -> float:
        expiry = self._holding.expiry.next_deadline() if self._holding.is_aligned else float("inf")
        return min(expiry, self._renew_due) if self._may_renew else expiry
