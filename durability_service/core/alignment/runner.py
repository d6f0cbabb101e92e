"""Getting data from peers, on behalf of one name-space: asking, watching, applying, making durable.

What is asked for, of which peer and why, is decided in `durability_service.core.keeping.keeper`.
"""

from __future__ import annotations

from collections.abc import Sequence

from durability_service.core.alignment.alignee import Alignment, AlignmentPurpose, Applying
from durability_service.core.alignment.behind import Behind
from durability_service.core.alignment.conflicts import Conflict, SpacePeer
from durability_service.core.alignment.late_samples import LateSamples
from durability_service.core.alignment.merging import MergePolicy, diff
from durability_service.core.effects import Level
from durability_service.core.keeping.context import ServiceContext
from durability_service.core.keeping.epochs import EpochChanges
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import AlignData, AlignEnd
from durability_service.core.sets.batches import unpack
from durability_service.core.sets.sample_set import by_instance
from durability_service.core.sets.samples import Sample


class AlignmentRunner:
    """One alignment at a time: ``holding.alignment`` from `start` until it is applied or abandoned.

    It tells ``late_samples`` what a reconciliation brought, and ``behind`` with which peers the set was reconciled.
    """

    def __init__(
        self, context: ServiceContext, holding: Holding, epochs: EpochChanges, late_samples: LateSamples, behind: Behind
    ) -> None:
        self._context = context
        self._holding = holding
        self._epochs = epochs
        self._late_samples = late_samples
        self._behind = behind

    def start(self, conflict: Conflict, asked_at: int) -> None:
        """Ask the peer for what differs.  What was written here after ``asked_at`` is not touched."""
        held = self._holding
        purpose, peer, policy = conflict
        held.counters.alignments += 1
        held.alignment = Alignment(
            self._context.settings,
            held.name,
            held.set,
            source=peer.node,
            source_incarnation=peer.service.advert.incarnation,
            purpose=purpose,
            policy=policy,
            asked_at=asked_at,
            compares=held.policy.equality_check,
            role=peer.role,
        )
        self._context.trace(
            Level.FINE, "aligning", name_space=held.name, peer=peer.node, purpose=purpose.value, policy=policy.value
        )
        self._ask(held.alignment)

    def _ask(self, alignment: Alignment) -> None:
        self._context.send(alignment.request(self._context.request_number(), self._context.now))

    def watch(self, alignment: Alignment, peers: Sequence[SpacePeer]) -> None:
        """Ask again when nothing comes; abandon the alignment when its source is gone or never answers."""
        now = self._context.now
        source = next((peer for peer in peers if peer.node == alignment.source), None)
        is_there = (
            source is not None
            and source.service.advert.incarnation == alignment.source_incarnation
            and source.advert.is_complete
        )
        if not is_there or (alignment.is_overdue(now) and alignment.is_hopeless):
            self._abandon(alignment)
        elif alignment.is_overdue(now):
            self._ask(alignment)

    def _abandon(self, alignment: Alignment) -> None:
        held = self._holding
        self._context.trace(
            Level.WARNING, "alignment abandoned", name_space=held.name, peer=alignment.source,
            purpose=alignment.purpose.value,
        )  # fmt: skip
        held.counters.alignments_abandoned += 1
        held.alignment = None
        if held.phase in (Phase.FETCH, Phase.MERGING):
            held.moves(LifecycleCause.SOURCE_LOST, self._context.now)

    def received(self, message: AlignData | AlignEnd) -> None:
        """A part of an answer, or its end, from a peer that is connected and compatible."""
        alignment, now = self._holding.alignment, self._context.now
        if alignment is None or alignment.applying or not alignment.is_for_us(message):
            return
        if isinstance(message, AlignData):
            progress = alignment.data(message, now)
            if progress is not None:
                self._context.send(progress)
        elif alignment.ended(message, now):
            gone = self._holding.delete(message.deletions) or []
            alignment.apply(removed=self._holding.stored.of(gone), is_change=bool(gone))
        elif message.is_complete and not alignment.is_hopeless:
            self._ask(alignment)

    def apply_some(self, alignment: Alignment) -> None:
        """Put a bounded number of buckets of an answer that has come whole into the set."""
        held, applying, end = self._holding, alignment.applying, alignment.end
        assert applying is not None
        assert end is not None
        for _ in range(min(self._context.settings.buckets_per_step, len(applying.buckets))):
            number = applying.buckets.pop()
            came, is_change = self._apply_bucket(alignment, applying, number)
            held.counters.aligned += came
            applying.is_change = applying.is_change or is_change
            held.was_written = held.was_written or came > 0
        if not applying.buckets:
            held.alignment = None
            if alignment.purpose is AlignmentPurpose.FETCH:
                self._fetched(alignment, applying, end)
            else:
                self._applied(alignment, applying, end)
            self._context.trace(
                Level.INFO, "aligned", name_space=held.name, peer=alignment.source, purpose=alignment.purpose.value,
                received=alignment.received, samples=held.set.count,
            )  # fmt: skip

    def _apply_bucket(self, alignment: Alignment, applying: Applying, number: int) -> tuple[int, bool]:
        """How many samples came, and whether anything changed."""
        held = self._holding
        theirs = alignment.staged[number]
        if held.set.adopt(number, theirs):  # nothing here: every policy that asks for data takes what the other has
            applying.adopted.append(number)
            if alignment.purpose is AlignmentPurpose.RECONCILE:
                self._late_samples.aligned((sample.digest for sample in unpack(theirs)), self._context.now)
            return theirs.count, theirs.count > 0
        local, remote = held.set.bucket(number), by_instance(unpack(theirs))
        change = diff(alignment.policy, local, remote, alignment.asked_at, held.set.kept)
        added: list[Sample] = []
        removed: list[Sample] = []
        for instance, kept in change.changed.items():
            came, went = held.set.put(instance, kept)
            added += came
            removed += went
        if alignment.purpose is AlignmentPurpose.RECONCILE:
            self._late_samples.aligned((sample.digest for sample in added), self._context.now)
        applying.added += held.stored.of(added)
        applying.removed += held.stored.of(removed)
        return len(added), bool(added or removed)

    def _applied(self, alignment: Alignment, applying: Applying, end: AlignEnd) -> None:
        """An alignment is in a set that was complete before: make it durable, then say so."""
        held, epochs = self._holding, self._epochs
        if applying.is_change and alignment.purpose is not AlignmentPurpose.RECONCILE:  # which `LateSamples` tells
            held.joined(alignment.policy)
        past = held.epoch, held.lineage
        if alignment.purpose is AlignmentPurpose.FOLLOW and end.epoch > held.epoch:
            past = end.epoch, epochs.lineage_after(alignment.policy, end.lineage)
        elif alignment.purpose is AlignmentPurpose.COLLECT:
            past = epochs.next(end.epoch, *end.lineage)
        elif alignment.purpose is AlignmentPurpose.FOREIGN:
            held.merged[alignment.role] = end.epoch
            held.merged_at[alignment.role] = self._context.now
            if applying.is_change:
                past = epochs.next()
        else:
            held.differs_since.pop(alignment.source, None)
            self._behind.reconciled(alignment.source)
            if applying.is_change and held.leads and held.has_other_roles:
                past = epochs.next()  # other roles must hear of it
        epochs.join(past, held.change(applying.added, applying.removed, epochs.marks(past), applying.adopted))

    def _fetched(self, alignment: Alignment, applying: Applying, end: AlignEnd) -> None:
        held = self._holding
        past = end.epoch, self._epochs.lineage_after(alignment.policy, end.lineage)
        marks = self._epochs.marks(past)
        if alignment.policy is MergePolicy.MERGE and held.stored.has_usable_base:
            operations = held.change(applying.added, applying.removed, marks, applying.adopted)
        else:
            operations = held.stored.whole(marks)
        self._epochs.complete(past, operations)
