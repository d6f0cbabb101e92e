"""How a name-space comes to its next epoch: it is made durable first, and adopted then."""

from __future__ import annotations

from collections.abc import Sequence

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Level, StoreMarks, StoreOperation
from durability_service.core.keeping.context import ServiceContext
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import Epoch

EpochPast = tuple[Epoch, tuple[Epoch, ...]]
"""An epoch and its lineage."""


class EpochChanges:
    """Of one name-space.  From `marks` on until the operations are durable, ``holding.is_marking`` is true."""

    def __init__(self, context: ServiceContext, holding: Holding) -> None:
        self._context = context
        self._holding = holding

    def lineage_after(self, policy: MergePolicy, theirs: Sequence[Epoch]) -> tuple[Epoch, ...]:
        """The lineage of a set into which another one came by this policy."""
        held = self._holding
        return held.lineage_with(held.epoch, *theirs) if policy is MergePolicy.MERGE else tuple(theirs)

    def next(self, *joined: Epoch) -> EpochPast:
        """A new epoch that this service starts; ``joined`` are in its past, besides our own."""
        held = self._holding
        held.epoch_max += 1
        return Epoch(held.epoch_max, self._context.settings.node), held.lineage_with(held.epoch, *joined)

    def start(self, *joined: Epoch) -> None:
        """Make a new epoch ours."""
        self.adopt(self.next(*joined))

    def marks(self, past: EpochPast) -> StoreMarks:
        """What is to be written with the change that brings this epoch."""
        self._holding.is_marking = True
        return self._holding.stored.marks(*past, self._context.stamp())

    def adopt(self, past: EpochPast) -> None:
        """Make an epoch ours, without a change of the set."""
        held = self._holding

        def adopted() -> None:
            self._set(past)
            self._context.trace(Level.FINE, "epoch", name_space=held.name, epoch=past[0])

        self._context.store(held, held.change(marks=self.marks(past)), adopted)

    def join(self, past: EpochPast, operations: Sequence[StoreOperation]) -> None:
        """Make an epoch ours with what an alignment changed in a complete set."""
        held = self._holding

        def joined() -> None:
            self._set(past)
            if held.phase is Phase.MERGING:
                held.moves(LifecycleCause.STORED, self._context.now)

        self._context.store(held, operations, joined)

    def complete(self, past: EpochPast, operations: Sequence[StoreOperation]) -> None:
        """Make the first complete set of this run ours."""
        self._context.store(self._holding, operations, lambda: self._completed(past))

    def _set(self, past: EpochPast) -> None:
        held = self._holding
        held.is_marking = False
        held.epoch, held.lineage = past

    def _completed(self, past: EpochPast) -> None:
        """From now on the set is maintained, and live data acknowledged."""
        held = self._holding
        self._set(past)
        held.stored.has_base = True
        if held.phase is Phase.TERMINATING:
            return
        held.moves(LifecycleCause.STORED, self._context.now)
        self._context.trace(Level.INFO, "complete", name_space=held.name, samples=held.set.count, epoch=past[0])
        samples, tokens = held.waiting.take()

        def durable() -> None:
            for token in tokens:
                self._context.acknowledge(token)

        self._context.store(held, held.change(*held.add(samples)), durable)
