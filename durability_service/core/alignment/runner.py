"""Getting data from peers, on behalf of one name-space: asking, watching, applying, making durable.

What is asked for, of which peer and why, is decided in `durability_service.core.keeping.keeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from durability_service.core.alignment.alignee import Alignment, AlignmentPurpose, Applying
from durability_service.core.alignment.behind import Behind
from durability_service.core.alignment.conflicts import Conflict, SpacePeer
from durability_service.core.alignment.late_samples import LateSamples
from durability_service.core.alignment.merging import MergePolicy, merge
from durability_service.core.effects import Level, StoreOperation
from durability_service.core.keeping.context import ServiceContext
from durability_service.core.keeping.epochs import EpochChanges
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import AlignData, AlignEnd
from durability_service.core.sets.batches import SampleBatch, unpack
from durability_service.core.sets.buckets import by_instance
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
        self._is_change_untold = False
        """An alignment changed the set, and it has not come to its end yet."""
        self._is_filling = False
        """There was nothing here: what comes goes into a new generation on disk, which is completed at the end."""

    def start(self, conflict: Conflict, asked_at: int) -> None:
        """Ask the peer for what differs.  What was written here after ``asked_at`` is not touched."""
        held = self._holding
        purpose, peer, policy = conflict
        is_filling = purpose is AlignmentPurpose.FETCH and not held.set.count
        held.counters.alignments += 1
        held.alignment = Alignment(
            self._context.settings,
            held.name,
            held.set,
            conflict,
            asked_at=asked_at,
            compares=held.policy.equality_check,
            is_streamed=is_filling or self._may_stream(conflict),
        )
        self._is_filling = is_filling
        if is_filling:
            self._context.store(held, held.stored.begin())
        self._context.trace(
            Level.FINE, "aligning", name_space=held.name, peer=peer.node, purpose=purpose.value, policy=policy.value
        )
        self._ask(held.alignment)

    def _may_stream(self, conflict: Conflict) -> bool:
        """Whether half of the answer does no harm: it only adds to the set.  A set from disk looks newer by it than it
        is; so to that only where sets are joined in any case."""
        role = self._context.settings.role
        is_joined = self._holding.policy.merge_for(role, role) is MergePolicy.MERGE
        return conflict.policy is MergePolicy.MERGE and (conflict.purpose is not AlignmentPurpose.FETCH or is_joined)

    def _ask(self, alignment: Alignment) -> None:
        self._put_staged(alignment)
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
        if self._is_filling:
            held.set.clear()  # half of a set is none
        elif self._is_change_untold and held.is_aligned and alignment.purpose is not AlignmentPurpose.RECONCILE:
            held.joined(alignment.policy)  # readers must not wait for the next attempt
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
                # No faster than the disk: what waits for it is in memory.
                self._put_staged(alignment, lambda: self._context.send(progress))
        elif alignment.ended(message, now):
            self._put_staged(alignment)
            known = self._holding.set.deletions
            gone = self._holding.delete(message.deletions) or []
            is_change = bool(gone) or (self._holding.set.is_cleaning and self._holding.set.deletions != known)
            alignment.apply(removed=self._holding.stored.of(gone), is_change=is_change)
        elif message.is_complete and not alignment.is_hopeless:
            self._ask(alignment)

    def _put_staged(self, alignment: Alignment, then: Callable[[], None] = lambda: None) -> None:
        """Put what came into the set already, if half of the answer does no harm; ``then`` is called when the store has
        it.  Many buckets at a time: each call is a transaction."""
        operations = self._put(alignment, alignment.take_staged()) if alignment.is_streamed else []
        self._context.store(self._holding, operations, then)

    def _put(self, alignment: Alignment, batches: dict[int, SampleBatch]) -> list[StoreOperation]:
        """Put buckets into the set, and have the store do the same."""
        held, applying = self._holding, Applying([], [], is_change=False)
        for number, batch in batches.items():
            self._apply_bucket(alignment, applying, number, batch)
        self._is_change_untold |= applying.is_change
        if self._is_filling:
            return held.stored.fill(sorted(batches))
        return held.change(applying.added, applying.removed, adopted=applying.adopted)

    def apply_some(self, alignment: Alignment) -> None:
        """Put a bounded number of buckets of an answer that has come whole into the set."""
        held, applying, end = self._holding, alignment.applying, alignment.end
        assert applying is not None
        assert end is not None
        for _ in range(min(self._context.settings.buckets_per_step, len(applying.buckets))):
            number = applying.buckets.pop()
            self._apply_bucket(alignment, applying, number, alignment.staged[number])
        if not applying.buckets:
            held.alignment = None
            applying.is_change |= self._is_change_untold
            self._is_change_untold = False
            if alignment.purpose is AlignmentPurpose.FETCH:
                self._fetched(alignment, applying, end)
            else:
                self._applied(alignment, applying, end)
            self._context.trace(
                Level.INFO, "aligned", name_space=held.name, peer=alignment.source, purpose=alignment.purpose.value,
                received=alignment.received, samples=held.set.count,
            )  # fmt: skip

    def _apply_bucket(self, alignment: Alignment, applying: Applying, number: int, theirs: SampleBatch) -> None:
        held = self._holding
        if held.set.adopt(number, theirs):  # nothing here: every policy that asks for data takes what the other has
            applying.adopted.append(number)
            if alignment.purpose is AlignmentPurpose.RECONCILE:
                self._late_samples.aligned((sample.digest for sample in unpack(theirs)), self._context.now)
            self._came(applying, theirs.count, is_change=theirs.count > 0)
            return
        local, remote = held.set.bucket(number), by_instance(unpack(theirs))
        changes = merge(alignment.policy, local, remote, alignment.asked_at, held.set.kept)
        added: list[Sample] = []
        removed: list[Sample] = []
        for instance, kept in changes.items():
            new, gone = held.set.put(instance, kept)
            added += new
            removed += gone
        if alignment.purpose is AlignmentPurpose.RECONCILE:
            self._late_samples.aligned((sample.digest for sample in added), self._context.now)
        applying.added += held.stored.of(added)
        applying.removed += held.stored.of(removed)
        self._came(applying, len(added), is_change=bool(added or removed))

    def _came(self, applying: Applying, count: int, *, is_change: bool) -> None:
        """So many samples came with a bucket."""
        self._holding.counters.aligned += count
        self._holding.was_written |= count > 0
        applying.is_change |= is_change

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
        if self._is_filling:
            operations = held.stored.complete(marks)
        elif alignment.policy is MergePolicy.MERGE and held.stored.has_base:
            operations = held.change(applying.added, applying.removed, marks, applying.adopted)
        else:
            operations = held.stored.whole(marks)
        self._epochs.complete(past, operations)
