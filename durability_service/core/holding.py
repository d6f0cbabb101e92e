"""One name-space in one service: its set, where it stands, and what is promised about it.

Live samples are acknowledged when they are durable *and* the set they belong to is complete.  Before that they are held
in memory: written into an old set that may yet be set aside, they would make that set look newer than it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from durability_service.core.alignment.alignee import Alignment
from durability_service.core.alignment.aligner import Aligner, Standing
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, Restored, StoreMarks, StoreOperation
from durability_service.core.election import Choice, ElectionMember
from durability_service.core.lifecycle import ALIGNED, LifecycleCause, Phase, after
from durability_service.core.messages import NO_EPOCH, Epoch, NameSpaceAdvert
from durability_service.core.namespaces import Alignee, Kind, NameSpace, NamespacePolicy
from durability_service.core.sets.batches import SampleBatch, pack, unpack
from durability_service.core.sets.expiry import Expiry
from durability_service.core.sets.repacking import Repacking
from durability_service.core.sets.sample_set import Deletion, SampleSet
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import ServiceSettings

FILL_BUCKETS = 64
"""Buckets per operation while a generation is filled."""
_NO_CHOICE = Choice(b"", "", frozenset())


@dataclasses.dataclass
class NamespaceCounters:
    """What happened in a name-space since the start."""

    live: int = 0
    duplicates: int = 0
    held_dropped: int = 0
    from_the_future: int = 0
    """Live samples stamped further ahead than clocks may be apart."""
    future_refused: int = 0
    """Those of them that were not kept: see `durability_service.core.clocks`."""
    aligned: int = 0
    alignments: int = 0
    alignments_abandoned: int = 0
    merges: int = 0
    joins: int = 0
    """What another side had came in after this side was complete."""
    replacements: int = 0
    """This side gave way to another: what it had may be gone."""
    elections: int = 0
    injections: int = 0
    deletions: int = 0
    swept: int = 0


class Holding:
    def __init__(
        self,
        settings: ServiceSettings,
        space: NameSpace,
        policy: NamespacePolicy,
        restored: Restored | None,
        now: float,
    ) -> None:
        self._settings = settings
        self.space = space
        self.policy = policy
        self.matcher = space.matcher()
        self.counters = NamespaceCounters()
        self._persistent_topics: dict[str, bool] = {}
        self.phase = Phase.DISCOVER
        self.since = now
        """When this phase began."""
        self.set = SampleSet(settings.buckets, settings.rules.depth_of)
        self.has_base = restored is not None and restored.is_complete
        """A complete set was on disk; until the name-space is complete, it is what the set holds."""
        marks = restored.marks if restored and self.has_base else StoreMarks()
        self.epoch, self.lineage = self.marked = (marks.epoch, marks.lineage)
        """``marked``: epoch and lineage as the store was last told, ours or the next ones."""
        self._repacking = Repacking(self.set, settings.repack_changes)
        self._has_our_buckets = restored is None or restored.buckets == settings.buckets
        """The set on disk is kept in as many buckets as ours; otherwise it is changed, but never bucket by bucket."""
        if restored and self.has_base:
            self._load(restored)
        self.quality = self.set.newest
        self.base_alive = marks.alive
        self.was_written = self.set.count > 0
        self.epoch_max = self.epoch.counter
        """The highest counter seen anywhere."""
        self.held: list[Sample] = []
        self.held_tokens: list[int] = []
        self.is_wanted = self.may_keep and policy.alignee is Alignee.INITIAL
        self.choice = _NO_CHOICE
        self.is_agreed = False
        self.master = ""
        self.agreed_members: frozenset[str] = frozenset()
        self.has_other_roles = False
        """Services of other roles are there, who learn of what is new here only by a new epoch."""
        self.merged: dict[str, Epoch] = {}
        """Role -> the epoch of its master that we joined with."""
        self.merged_at: dict[str, float] = {}
        """Role -> when that was, if data was asked for."""
        self.differs_since: dict[str, float] = {}
        """Peer of the same epoch -> since when its set has been another than ours."""
        self.alignment: Alignment | None = None
        self.applying: Applying | None = None
        self.is_marking = False
        """A new epoch is being made durable."""
        self.aligner = Aligner(settings, space.name, self.set)
        self.conflicts: list[str] = []
        self.warnings: list[str] = []
        """What is configured in a way that cannot work well."""
        self.sweep_next = 0
        self.expiry = Expiry(settings, self.set, now)

    def _load(self, restored: Restored) -> None:
        for deletion in restored.marks.deletions:
            self.set.delete(deletion)
        samples = list(restored.samples)
        for number, batch in restored.batches.items():
            if not (self._has_our_buckets and self.set.adopt(number, batch)):
                samples += unpack(batch)
        for sample in samples:
            self.set.add(sample)

    # -- asking

    @property
    def name(self) -> str:
        return self.space.name

    @property
    def is_persistent(self) -> bool:
        return self.policy.durability >= Kind.PERSISTENT

    @property
    def is_aligned(self) -> bool:
        """The set was complete once and is maintained."""
        return self.phase in ALIGNED

    @property
    def is_complete(self) -> bool:
        """The set is complete now: readers may rely on it."""
        return self.phase is Phase.COMPLETE and self.applying is None

    @property
    def has_usable_base(self) -> bool:
        """The set on disk can be changed bucket by bucket."""
        return self.has_base and self._has_our_buckets

    @property
    def may_keep(self) -> bool:
        """Whether anything may be kept here at all."""
        return self.policy.durability >= Kind.TRANSIENT and self.policy.alignee is not Alignee.ON_REQUEST

    @property
    def can_lead(self) -> bool:
        """Who has no interest in the data, or none yet, must not be the source of it."""
        return self.policy.aligner and self.policy.master_priority > 0 and self.is_wanted

    def keeps(self, topic: str) -> bool:
        return min(self._settings.rules.kind_of(topic), self.policy.durability) >= Kind.TRANSIENT

    def knows(self, epoch: Epoch) -> bool:
        """Whether the data of that epoch is in this set."""
        return epoch in (self.epoch, NO_EPOCH) or epoch in self.lineage

    def standing(self) -> Standing:
        is_serving = self.is_aligned and self.applying is None and self.policy.aligner
        return Standing(is_serving, self.epoch, list(self.lineage))

    def member(self) -> ElectionMember:
        """What the election is told of us."""
        return ElectionMember(
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            can_lead=self.can_lead,
            is_complete=self.is_aligned,
            priority=self.policy.master_priority,
            leads=self.epoch.counter if self.leads else 0,
            quality=0 if self.is_aligned else self.quality,
        )

    @property
    def leads(self) -> bool:
        return self.is_aligned and self.master == self._settings.node

    def advert(self) -> NameSpaceAdvert:
        member = self.member()
        return NameSpaceAdvert(
            name=self.name,
            filters=sorted(self.space.filters),
            is_ready=self.phase not in (Phase.DISCOVER, Phase.DORMANT),
            can_lead=member.can_lead,
            is_aligner=self.policy.aligner,
            priority=member.priority,
            is_complete=member.is_complete,
            is_pristine=not self.was_written,
            quality=member.quality,
            count=self.set.count,
            digest=self.set.digest,
            epoch=self.epoch,
            lineage=list(self.lineage),
            is_master=self.leads,
            master=self.master,
            view=self.choice.view,
            candidate=self.choice.candidate,
            is_delayed=self.policy.delayed_alignment,
            joins=self.counters.joins,
            replacements=self.counters.replacements,
        )

    # -- changing

    def moves(self, cause: LifecycleCause, now: float) -> None:
        self.phase = after(self.phase, cause)
        self.since = now

    def hold(self, samples: Sequence[Sample], token: int) -> bool:
        """Keep live samples back until the set is complete.  False when there is no room."""
        room = self._settings.held_max - len(self.held)
        if room < len(samples):
            self.counters.held_dropped += len(samples)  # not acknowledged, so whoever needs to be sure sends again
            return False
        self.held += samples
        if token:
            self.held_tokens.append(token)
        return True

    def take_held(self) -> tuple[list[Sample], list[int]]:
        """The samples held back, to be put into the set, and the tokens to acknowledge when they are durable."""
        samples, self.held = self.held, []
        tokens, self.held_tokens = self.held_tokens, []
        return samples, tokens

    def add(self, samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
        """Put samples into the set.  Returns what the store must add and remove."""
        added: list[Sample] = []
        removed: list[Sample] = []
        for sample in samples:
            gone = self.set.add(sample)
            if gone is None:
                self.counters.duplicates += 1
                continue
            added.append(sample)
            removed += gone
        if added:
            self.was_written = True
        return self.for_store(added), self.for_store(removed)

    def for_store(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those of the samples that go to disk."""
        if not self.is_persistent or not samples:
            return []
        return [sample for sample in samples if self._is_persistent_topic(sample[0])]

    def _is_persistent_topic(self, topic: str) -> bool:
        """Asked for every sample, so it is remembered."""
        known = self._persistent_topics.get(topic)
        if known is None:
            known = self._persistent_topics[topic] = self._settings.rules.kind_of(topic) is Kind.PERSISTENT
        return known

    def delete(self, deletions: Sequence[Deletion]) -> list[Sample] | None:
        """Apply deletions of history.  Returns what went; None when all of them were known."""
        gone: list[Sample] | None = None
        for deletion in deletions:
            removed = self.set.delete(deletion)
            if removed is not None:
                self.counters.deletions += 1
                gone = (gone or []) + removed
                self.held = [sample for sample in self.held if not deletion.covers(sample)]
        return gone

    def joined(self, policy: MergePolicy) -> None:
        """The set changed by what another side had, or by giving it up: readers must hear of it."""
        if policy is MergePolicy.MERGE:
            self.counters.joins += 1
        else:
            self.counters.replacements += 1

    def marks(self, epoch: Epoch, lineage: tuple[Epoch, ...], alive: int) -> StoreMarks:
        """What the store is to remember from now on."""
        self.marked = (epoch, lineage)
        return StoreMarks(epoch, lineage, self.set.deletions, alive)

    def lineage_with(self, *epochs: Epoch) -> tuple[Epoch, ...]:
        """Our lineage and these, the newest if they are too many."""
        known = {epoch for epoch in (*self.lineage, *epochs) if epoch != NO_EPOCH}
        return tuple(sorted(known)[-self._settings.lineage_max :])

    def whole(self, marks: StoreMarks) -> list[StoreOperation]:
        """A new generation with all there is."""
        if not self.is_persistent:
            return []
        self._has_our_buckets = True
        numbers = self.set.filled()
        return [
            BeginFill(self.name, tuple(sorted(self.space.filters)), self.set.bucket_count),
            *(
                Fill(self.name, self._batches(numbers[start : start + FILL_BUCKETS]))
                for start in range(0, len(numbers), FILL_BUCKETS)
            ),
            CompleteFill(self.name, marks),
        ]

    def change(
        self, added: list[Sample], removed: list[Sample], marks: StoreMarks | None = None, adopted: Sequence[int] = ()
    ) -> list[StoreOperation]:
        """A change of the present generation, with buckets that were taken over; none when there is nothing to change.
        The set has changed already."""
        if not self.is_persistent or not (added or removed or marks or adopted):
            return []
        numbers = [*adopted]
        self._repacking.changed(len(added) + len(removed))
        # While an alignment is applied the set has what the disk must not have before all of it is there.
        if self.applying is None and self._has_our_buckets:
            numbers += self._repacking.due()
        return [Apply(self.name, added, removed, marks, self._batches(numbers))]

    def _batches(self, numbers: Sequence[int]) -> dict[int, SampleBatch]:
        """What the store is to hold of these buckets."""
        return {number: self._for_store(self.set.batch(number)) for number in numbers}

    def _for_store(self, batch: SampleBatch) -> SampleBatch:
        if all(map(self._is_persistent_topic, batch.topics)):
            return batch
        return pack(self.for_store(unpack(batch)))


@dataclasses.dataclass
class Applying:
    """An alignment that has come whole and is being put into the set, some buckets at a time."""

    buckets: list[int]
    finish: Callable[[Applying], None]
    added: list[Sample] = dataclasses.field(default_factory=list)
    removed: list[Sample] = dataclasses.field(default_factory=list)
    adopted: list[int] = dataclasses.field(default_factory=list)
    """Buckets that were empty and were taken over whole."""
    is_change: bool = False
    """It made a difference."""
