"""Getting data from peers, on behalf of one name-space: asking, watching, applying, making durable.

What is asked for, of whom and why, is decided in `durability_service.core.keeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from durability_service.core.alignment.alignee import Alignment, AlignmentPurpose
from durability_service.core.alignment.behind import Behind
from durability_service.core.alignment.conflicts import SpacePeer
from durability_service.core.alignment.late_samples import LateSamples
from durability_service.core.alignment.merging import MergePolicy, diff
from durability_service.core.effects import Level, StoreMarks, StoreOperation
from durability_service.core.holding import Applying, Holding
from durability_service.core.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import AlignData, AlignEnd, AlignProgress, AlignRequest, Epoch, Message
from durability_service.core.sets.batches import unpack
from durability_service.core.sets.sample_set import by_instance
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import ServiceSettings


class Context(Protocol):
    """What a keeper needs of the service."""

    settings: ServiceSettings
    now: float

    def send(self, message: Message) -> None: ...

    def store(self, holding: Holding, operations: Sequence[StoreOperation], then: Callable[[], None]) -> None:
        """Have the operations done, in order; call ``then`` when they are durable."""

    def trace(self, level: Level, what: str, **fields: Any) -> None: ...

    def stamp(self) -> int:
        """The time as a hybrid logical clock value."""

    def request_number(self) -> int: ...

    def askers(self, name_space: str) -> Set[str]:
        """Connected peers of our role that have no complete set."""

    def acknowledge(self, token: int) -> None:
        """One of the name-spaces to which an event of the bus belonged has made it durable."""

    def refuse(self, token: int) -> None:
        """One of them did not take it: it is not acknowledged, whatever the others did."""

    def has_strangers(self) -> bool:
        """Whether a peer was heard that has not had the time to hear us."""


class Aligning:
    """The half of a keeper that gets data."""

    def __init__(self, context: Context, holding: Holding) -> None:
        self._context = context
        self._settings = context.settings
        self.holding = holding
        self.latecomers = LateSamples(context.settings.reconcile_s)
        self.lagging = Behind(context.settings.reconcile_s)

    def _joint_lineage(self, policy: MergePolicy, theirs: Sequence[Epoch]) -> tuple[Epoch, ...]:
        held = self.holding
        if policy is MergePolicy.MERGE:
            return held.lineage_with(held.epoch, *theirs)
        return tuple(theirs)

    def _next_epoch(self, *joined: Epoch) -> tuple[Epoch, tuple[Epoch, ...]]:
        held = self.holding
        held.epoch_max += 1
        return Epoch(held.epoch_max, self._settings.node), held.lineage_with(held.epoch, *joined)

    def _align(
        self, now: float, peer: SpacePeer, purpose: AlignmentPurpose, policy: MergePolicy, asked_at: int
    ) -> None:
        held = self.holding
        held.counters.alignments += 1
        held.alignment = Alignment(
            self._settings,
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
        self._context.send(held.alignment.request(self._context.request_number(), now))

    def _watch_source(self, now: float, peers: Sequence[SpacePeer]) -> None:
        held = self.holding
        alignment = held.alignment
        assert alignment is not None
        source = next((peer for peer in peers if peer.node == alignment.source), None)
        is_there = (
            source is not None
            and source.service.advert.incarnation == alignment.source_incarnation
            and source.advert.is_complete
        )
        if not is_there or (alignment.is_overdue(now) and alignment.is_hopeless):
            self._abandon(now)
        elif alignment.is_overdue(now):
            self._context.send(alignment.request(self._context.request_number(), now))

    def _abandon(self, now: float) -> None:
        held = self.holding
        assert held.alignment is not None
        self._context.trace(
            Level.WARNING, "alignment abandoned", name_space=held.name, peer=held.alignment.source,
            purpose=held.alignment.purpose.value,
        )  # fmt: skip
        held.counters.alignments_abandoned += 1
        held.alignment = None
        if held.phase in (Phase.FETCH, Phase.MERGING):
            held.moves(LifecycleCause.SOURCE_LOST, now)

    def received(self, message: AlignRequest | AlignData | AlignEnd | AlignProgress, now: float) -> None:
        """A message about alignment, from a peer that is connected and compatible."""
        held = self.holding
        alignment = held.alignment
        if isinstance(message, AlignRequest):
            if message.to == self._settings.node and held.policy.aligner:
                held.aligner.requested(message, now, self._context.askers(held.name))
        elif isinstance(message, AlignProgress):
            if message.to == self._settings.node:
                held.aligner.progressed(message, now)
        elif alignment is None or held.applying or not alignment.is_for_us(message):
            return
        elif isinstance(message, AlignData):
            progress = alignment.data(message, now)
            if progress is not None:
                self._context.send(progress)
        elif alignment.ended(message, now):
            self._begin_applying(alignment, message)
        elif message.is_complete and not alignment.is_hopeless:
            self._context.send(alignment.request(self._context.request_number(), now))

    def _begin_applying(self, alignment: Alignment, end: AlignEnd) -> None:
        held = self.holding
        gone = held.delete(end.deletions) or []
        held.applying = Applying(
            buckets=alignment.covered()[::-1],
            finish=lambda applying: self._applied(alignment, applying, end),
            removed=held.for_store(gone),
            is_change=bool(gone),
        )

    def pump(self, now: float) -> None:
        """Do a bounded amount of what is under way."""
        held = self.holding
        for message in held.aligner.pump(now, held.standing()):
            self._context.send(message)
        if held.applying is not None:
            self._apply_some(held.applying)

    def _apply_some(self, applying: Applying) -> None:
        held = self.holding
        alignment = held.alignment
        assert alignment is not None
        for _ in range(min(self._settings.buckets_per_step, len(applying.buckets))):
            number = applying.buckets.pop()
            came, is_change = self._apply_bucket(alignment, number, applying)
            held.counters.aligned += came
            applying.is_change = applying.is_change or is_change
            held.was_written = held.was_written or came > 0
        if not applying.buckets:
            held.applying = None
            held.alignment = None
            applying.finish(applying)
            self._context.trace(
                Level.INFO, "aligned", name_space=held.name, peer=alignment.source, purpose=alignment.purpose.value,
                received=alignment.received, samples=held.set.count,
            )  # fmt: skip

    def _apply_bucket(self, alignment: Alignment, number: int, applying: Applying) -> tuple[int, bool]:
        """How many samples came, and whether anything changed."""
        held = self.holding
        theirs = alignment.staged[number]
        if held.set.adopt(number, theirs):  # nothing here: every policy that asks for data takes what the other has
            applying.adopted.append(number)
            if alignment.purpose is AlignmentPurpose.RECONCILE:
                self.latecomers.aligned((sample.digest for sample in unpack(theirs)), self._context.now)
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
            self.latecomers.aligned((sample.digest for sample in added), self._context.now)
        applying.added += held.for_store(added)
        applying.removed += held.for_store(removed)
        return len(added), bool(added or removed)

    def _applied(self, alignment: Alignment, applying: Applying, end: AlignEnd) -> None:
        """An alignment is in the set: make it durable, then say so."""
        held = self.holding
        if alignment.purpose is AlignmentPurpose.FETCH:
            self._fetched(alignment, applying, end)
            return
        if applying.is_change and alignment.purpose is not AlignmentPurpose.RECONCILE:  # `latecomers` knows of those
            held.joined(alignment.policy)
        epoch, lineage = held.epoch, held.lineage
        if alignment.purpose is AlignmentPurpose.FOLLOW and end.epoch > held.epoch:
            epoch, lineage = end.epoch, self._joint_lineage(alignment.policy, end.lineage)
        elif alignment.purpose is AlignmentPurpose.COLLECT:
            epoch, lineage = self._next_epoch(end.epoch, *end.lineage)
        elif alignment.purpose is AlignmentPurpose.FOREIGN:
            held.merged[alignment.role] = end.epoch
            held.merged_at[alignment.role] = self._context.now
            if applying.is_change:
                epoch, lineage = self._next_epoch()
        else:
            held.differs_since.pop(alignment.source, None)
            self.lagging.reconciled(alignment.source)
            if applying.is_change and held.leads and held.has_other_roles:
                epoch, lineage = self._next_epoch()  # other roles must hear of it
        marks = held.marks(epoch, lineage, self._context.stamp())
        held.is_marking = True
        self._context.store(held, self._change(applying, marks), lambda: self._joined(epoch, lineage))

    def _fetched(self, alignment: Alignment, applying: Applying, end: AlignEnd) -> None:
        held = self.holding
        lineage = self._joint_lineage(alignment.policy, end.lineage)
        marks = held.marks(end.epoch, lineage, self._context.stamp())
        is_kept = alignment.policy is MergePolicy.MERGE and held.has_usable_base
        held.is_marking = True
        self._context.store(
            held,
            self._change(applying, marks) if is_kept else held.whole(marks),
            lambda: self._completed(end.epoch, lineage),
        )

    def _change(self, applying: Applying, marks: StoreMarks) -> list[StoreOperation]:
        return self.holding.change(applying.added, applying.removed, marks, applying.adopted)

    def _joined(self, epoch: Epoch, lineage: tuple[Epoch, ...]) -> None:
        held = self.holding
        held.is_marking = False
        held.epoch, held.lineage = epoch, lineage
        if held.phase is Phase.MERGING:
            held.moves(LifecycleCause.STORED, self._context.now)

    def _completed(self, epoch: Epoch, lineage: tuple[Epoch, ...]) -> None:
        """The first complete set of this run is durable: from now on it is maintained, and live data acknowledged."""
        held = self.holding
        held.is_marking = False
        held.epoch, held.lineage, held.has_base = epoch, lineage, True
        if held.phase is Phase.TERMINATING:
            return
        held.moves(LifecycleCause.STORED, self._context.now)
        self._context.trace(Level.INFO, "complete", name_space=held.name, samples=held.set.count, epoch=epoch)
        samples, tokens = held.take_held()
        added, removed = held.add(samples)
        self._context.store(held, held.change(added, removed), lambda: self._acknowledge(tokens))

    def _acknowledge(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._context.acknowledge(token)
