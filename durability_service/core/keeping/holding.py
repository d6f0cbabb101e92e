"""One name-space in one service: its set, where it stands, and what is promised about it.

Live samples are acknowledged when they are durable *and* the set they belong to is complete.  Before that they are held
in memory: written into an old set that may yet be set aside, they would make that set look newer than it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from durability_service.core.alignment.alignee import Alignment
from durability_service.core.alignment.aligner import Standing
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Restored, StoreMarks, StoreOperation
from durability_service.core.keeping.lifecycle import ALIGNED, LifecycleCause, Phase, after
from durability_service.core.keeping.stored_set import StoredSet
from durability_service.core.messages import NO_EPOCH, Epoch, NameSpaceAdvert
from durability_service.core.namespaces import Alignee, Kind, NameSpace, NamespacePolicy
from durability_service.core.peers.election import Choice, ElectionMember
from durability_service.core.sets.expiry import Expiry
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample
from durability_service.core.sets.stored_buckets import BucketMemory
from durability_service.core.settings import ServiceSettings

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


class WaitingSamples:
    """Live samples that came before the set was complete."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._samples: list[Sample] = []
        self._tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, samples: Sequence[Sample], token: int) -> bool:
        """False when there is no room."""
        if len(self._samples) + len(samples) > self._count_max:
            return False
        self._samples += samples
        if token:
            self._tokens.append(token)
        return True

    def delete(self, deletion: Deletion) -> None:
        self._samples = [sample for sample in self._samples if not deletion.covers(sample)]

    def take(self) -> tuple[list[Sample], list[int]]:
        """The samples, to be put into the set, and the tokens to acknowledge when they are durable."""
        samples, self._samples = self._samples, []
        tokens, self._tokens = self._tokens, []
        return samples, tokens


class Holding:
    """Facts only: `durability_service.core.keeping.keeper` and its parts decide and change them."""

    def __init__(
        self,
        settings: ServiceSettings,
        space: NameSpace,
        policy: NamespacePolicy,
        restored: Restored | None,
        now: float,
        memory: BucketMemory,
    ) -> None:
        """``memory`` is that of the service."""
        self._settings = settings
        self.space = space
        self.policy = policy
        self.matcher = space.matcher()
        self.counters = NamespaceCounters()
        self.phase = Phase.DISCOVER
        self.since = now
        """When this phase began."""
        self.stored = StoredSet(
            settings, space, restored, is_persistent=self.is_persistent, memory=memory
        )  # fmt: skip
        self.set = self.stored.set
        self.epoch, self.lineage = self.stored.marked
        self.epoch_max = self.epoch.counter
        """The highest counter seen anywhere."""
        self.was_written = self.set.count > 0
        self.waiting = WaitingSamples(settings.held_max)
        self.is_wanted = self.may_keep and policy.alignee is Alignee.INITIAL
        self.choice = _NO_CHOICE
        self.is_agreed = False
        self.master = ""
        self.has_other_roles = False
        """Services of other roles are there, which learn of what is new here only by a new epoch."""
        self.merged: dict[str, Epoch] = {}
        """Role -> the epoch of its master that we joined with."""
        self.merged_at: dict[str, float] = {}
        """Role -> when that was, if data was asked for."""
        self.differs_since: dict[str, float] = {}
        """Peer of the same epoch -> since when its set has been another than ours."""
        self.alignment: Alignment | None = None
        self.is_marking = False
        """A new epoch is being made durable."""
        self.expiry = Expiry(settings, self.set, now)

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
        return self.phase is Phase.COMPLETE and not self.is_applying

    @property
    def is_applying(self) -> bool:
        """The answer to an alignment has come whole and is being put into the set."""
        return self.alignment is not None and self.alignment.applying is not None

    @property
    def may_clean(self) -> bool:
        """What is deleted may leave the set now."""
        return self.set.is_cleaning and self.is_aligned and not self.is_applying

    @property
    def may_keep(self) -> bool:
        """Whether anything may be kept here at all."""
        return self.policy.durability >= Kind.TRANSIENT and self.policy.alignee is not Alignee.ON_REQUEST

    @property
    def can_lead(self) -> bool:
        """A service that does not want the data, or not yet, must not be the source of it."""
        return self.policy.aligner and self.policy.master_priority > 0 and self.is_wanted

    def keeps(self, topic: str) -> bool:
        return min(self._settings.rules.kind_of(topic), self.policy.durability) >= Kind.TRANSIENT

    def knows(self, epoch: Epoch) -> bool:
        """Whether the data of that epoch is in this set."""
        return epoch in (self.epoch, NO_EPOCH) or epoch in self.lineage

    def standing(self, *, is_settling: bool) -> Standing:
        is_serving = self.is_aligned and not self.is_applying and self.policy.aligner
        return Standing(is_serving, is_settling, self.epoch, list(self.lineage))

    def member(self) -> ElectionMember:
        """What the election is told of us."""
        return ElectionMember(
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            can_lead=self.can_lead,
            is_complete=self.is_aligned,
            priority=self.policy.master_priority,
            leads=self.epoch.counter if self.leads else 0,
            quality=0 if self.is_aligned else self.stored.quality,
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
        return self.stored.of(added), self.stored.of(removed)

    def delete(self, deletions: Sequence[Deletion]) -> list[Sample] | None:
        """Apply deletions of history.  Returns what went; None when all of them were known."""
        gone: list[Sample] | None = None
        for deletion in deletions:
            removed = self.set.delete(deletion)
            if removed is not None:
                self.counters.deletions += 1
                gone = (gone or []) + removed
                self.waiting.delete(deletion)
        return gone

    def joined(self, policy: MergePolicy) -> None:
        """The set changed by what another side had, or by giving it up: readers must hear of it."""
        if policy is MergePolicy.MERGE:
            self.counters.joins += 1
        else:
            self.counters.replacements += 1

    def lineage_with(self, *epochs: Epoch) -> tuple[Epoch, ...]:
        """Our lineage and these, the newest if they are too many."""
        known = {epoch for epoch in (*self.lineage, *epochs) if epoch != NO_EPOCH}
        return tuple(sorted(known)[-self._settings.lineage_max :])

    def change(
        self,
        added: Sequence[Sample] = (),
        removed: Sequence[Sample] = (),
        marks: StoreMarks | None = None,
        adopted: Sequence[int] = (),
    ) -> list[StoreOperation]:
        """What the store is told of a change of the set."""
        # While an alignment is applied the set has what the disk must not have before all of it is there.
        return self.stored.change(added, removed, marks, adopted, repacks=not self.is_applying)
