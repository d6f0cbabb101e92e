"""Drives one name-space through its life: takes part in elections, leads or follows, aligns, joins splits.

Theory of operation
-------------------
Each complete set carries an *epoch*, ``(counter, master)``, and a *lineage*: the earlier epochs whose data is in it.
A master starts a new epoch when it takes over, when a member of its view is lost (from then on there may be another
side), and when it has joined with another side.  So after a split both sides have epochs that the other does not know,
and that is how a split is recognised: an epoch that is in no lineage of the other side.

* A follower whose epoch is in its master's lineage has the same data, give or take what is on its way: union.
* Otherwise the two are sides of a split, and the merge policy for the role decides.
* Sets of the same epoch that stay different lost something live: union, bucket by bucket.

A new epoch is made durable before it is advertised.  A service that starts with a set on disk adds it to the master's
when it is of the master's own past, or when sides of a split are merged anyway; otherwise it is set aside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from durability_service.core.alignment import conflicts
from durability_service.core.alignment.alignee import AlignmentPurpose
from durability_service.core.alignment.aligner import Aligner
from durability_service.core.alignment.behind import Behind
from durability_service.core.alignment.conflicts import Conflict, SpacePeer
from durability_service.core.alignment.late_samples import LateSamples
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.alignment.runner import AlignmentRunner
from durability_service.core.effects import Level, StoreOperation
from durability_service.core.keeping.context import ServiceContext
from durability_service.core.keeping.epochs import EpochChanges
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.lifecycle import LifecycleCause, Phase
from durability_service.core.keeping.upkeep import Upkeep
from durability_service.core.messages import NO_EPOCH, AlignData, AlignEnd, AlignProgress, AlignRequest
from durability_service.core.peers.election import ElectionMember, choose, is_agreed
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample

_FOREVER = 1 << 63
_FILED_TOGETHER = 64
"""Live samples between two looks at how much was read from disk for them."""
_QUALITY_OLD, _QUALITY_FRESH = 1, 2
"""Of sets on disk: one that is too old comes before none, and after every other, also one that is empty."""
_CLEANING_ROUNDS = 12
"""For so many times the time after which sets are compared, a set that is being cleaned is compared with none."""
_STARTERS_DISCOVERIES = 3
"""Peers that still discover are waited for, for this many discovery periods, before data is injected."""


class Keeper:
    """Decides for one name-space.

    The owner calls `evaluate` when peers said something or time has passed, `pump` after every event, and `tick` at
    `next_deadline` at the latest.
    """

    def __init__(self, context: ServiceContext, holding: Holding) -> None:
        self._context = context
        self._settings = context.settings
        self.holding = holding
        self.late_samples = LateSamples(context.settings.reconcile_s)
        self.behind = Behind(context.settings.reconcile_s)
        self.aligner = Aligner(context.settings, holding.name, holding.set)
        """Gives data to peers."""
        self.upkeep = Upkeep(context, holding)
        self._epochs = EpochChanges(context, holding)
        self._runner = AlignmentRunner(context, holding, self._epochs, self.late_samples, self.behind)
        """Gets data from peers."""
        self._incoming: deque[tuple[Sequence[Sample], int]] = deque()
        """Live samples that are not in the set yet, and the token to acknowledge with the last of them."""
        self._cleaned_at = context.now
        """When the set was last seen without deleted samples."""
        self._complete_members: frozenset[str] = frozenset()
        """As master: the members whose sets were complete when it was last looked."""
        self._age_warning = ""
        """What became of a set on disk that was too old."""
        self.conflicts: list[str] = []
        self.warnings: list[str] = []
        """What is configured in a way that cannot work well."""

    @property
    def signature(self) -> tuple[object, ...]:
        """What peers must hear of at once when it changes."""
        held = self.holding
        counters = held.counters
        news = counters.joins, counters.replacements
        return held.phase, held.epoch, held.choice, held.master, held.is_agreed, held.can_lead, news

    # -- live data

    def live(self, samples: Sequence[Sample], token: int) -> None:
        held = self.holding
        held.counters.live += len(samples)
        self.late_samples.live(samples)
        if not held.is_aligned:
            if not held.waiting.add(samples, token):
                held.counters.held_dropped += len(samples)  # not acknowledged: a publisher that confirms sends again
                self._context.refuse(token)
            return
        self._incoming.append((samples, token))
        self.file_some()

    @property
    def is_filing(self) -> bool:
        """Live samples wait to be put into the set."""
        return bool(self._incoming)

    def file_some(self) -> None:
        """Put live samples into the set, until that took much reading."""
        held = self.holding
        reads_max = held.stored.buckets_read + self._settings.reads_per_step
        while self._incoming and held.stored.buckets_read < reads_max:
            samples, token = self._incoming.popleft()
            added: list[Sample] = []
            removed: list[Sample] = []
            start = 0
            while start < len(samples) and held.stored.buckets_read < reads_max:
                came, went = held.add(samples[start : start + _FILED_TOGETHER])
                added += came
                removed += went
                start += _FILED_TOGETHER
            if start < len(samples):
                self._incoming.appendleft((samples[start:], token))
                token = 0
            self._stored_live(held.change(added, removed), token)

    def _stored_live(self, change: Sequence[StoreOperation], token: int) -> None:
        self._context.store(self.holding, change, lambda: self._context.acknowledge(token) if token else None)

    def delete(self, deletions: Sequence[Deletion]) -> bool:
        """Delete history.  False when all of it was known."""
        held = self.holding
        gone = held.delete(deletions)
        if gone is None:
            return False
        self._context.trace(Level.INFO, "history deleted", name_space=held.name, samples=len(gone))
        stored = held.stored
        if stored.has_base or held.is_marking:  # there is, or there is about to be, a complete set on disk
            marks = stored.marks(*stored.marked, self._context.stamp())
            self._context.store(held, held.change((), stored.of(gone), marks))
        return True

    # -- deciding

    def evaluate(self, peers: Sequence[SpacePeer]) -> None:
        """Look at what the peers say and do what follows."""
        held, now = self.holding, self._context.now
        if held.phase is Phase.DORMANT and held.is_wanted:
            held.moves(LifecycleCause.INTEREST, now)
        if held.phase in (Phase.DISCOVER, Phase.DORMANT, Phase.TERMINATING):
            return
        members = [peer for peer in peers if peer.role == self._settings.role and peer.advert.is_ready]
        self._look_whether_behind(members)
        self._elect(members)
        self._warn(members)
        held.has_other_roles = any(peer.role != self._settings.role for peer in peers)
        held.epoch_max = max([held.epoch_max, *(peer.advert.epoch.counter for peer in peers)])
        if held.is_applying or held.is_marking:
            return
        if held.alignment:
            self._runner.watch(held.alignment, peers)
        elif held.phase is Phase.ELECT:
            self._begin(peers, members)
        elif held.is_aligned:
            self._lead_or_follow(peers, members)

    def _look_whether_behind(self, members: Sequence[SpacePeer]) -> None:
        if not self.behind.is_behind:
            return
        held = self.holding
        of_one_epoch = [peer for peer in members if peer.advert.is_complete and peer.advert.epoch == held.epoch]
        digest = held.set.digest
        said = [(peer.node, peer.advert.digest == digest, peer.service.heard_at) for peer in of_one_epoch]
        self.behind.look(self._context.now, said)

    @property
    def is_readable(self) -> bool:
        """Whether readers may be told that what they get is complete."""
        return self.holding.is_complete and not self.behind.is_behind

    def _elect(self, members: Sequence[SpacePeer]) -> None:
        held = self.holding
        held.choice = choose(tuple(sorted([held.member(), *map(_as_member, members)])))
        held.is_agreed = is_agreed(held.choice, [(peer.advert.view, peer.advert.candidate) for peer in members])
        if held.is_agreed and held.master != held.choice.candidate:
            held.master = held.choice.candidate
            held.counters.elections += 1
            self._context.trace(
                Level.INFO, "master agreed", name_space=held.name, master=held.master,
                members=sorted(held.choice.members),
            )  # fmt: skip
        elif held.master and held.master not in held.choice.members:
            held.master = ""
            self._context.trace(Level.WARNING, "master lost", name_space=held.name)

    def _warn(self, members: Sequence[SpacePeer]) -> None:
        """Say what is configured in a way that cannot work well."""
        held = self.holding
        is_delayed = held.policy.delayed_alignment
        others = sorted(peer.node for peer in members if peer.advert.is_delayed != is_delayed)
        warnings = [f"delayed_alignment is {is_delayed} here and not so in {', '.join(others)}"] if others else []
        if self._age_warning:
            warnings.append(self._age_warning)
        if held.phase is Phase.ELECT and (lacking := self._settings.injection_peers_min - len(members)) > 0:
            warnings.append(f"injection_peers_min: waiting for {lacking} more before the set on disk is used")
        if not held.choice.candidate:
            warnings.append("no service may lead: no aligner with a master_priority above 0 wants the data")
        own = held.policy.merge_for(self._settings.role, self._settings.role)
        if any(peer.node == held.master and conflicts.is_apart(held, peer, own) for peer in members if held.is_aligned):
            warnings.append(f"this set is of another side than that of {held.master}, and merge is IGNORE: they differ")
        for warning in warnings:
            if warning not in self.warnings:
                self._context.trace(Level.WARNING, warning, name_space=held.name)
        self.warnings = warnings

    def _begin(self, peers: Sequence[SpacePeer], members: Sequence[SpacePeer]) -> None:
        """Nothing is complete here yet: fetch from a peer that is, or inject when we are chosen and no peer is."""
        held = self.holding
        if not held.is_agreed:
            return
        sources = [peer for peer in members if peer.advert.is_complete and peer.advert.is_aligner]
        if held.master == self._settings.node:
            source = max(sources, key=lambda peer: (peer.advert.epoch, peer.advert.count, peer.node), default=None)
            is_quorate = len(members) >= self._settings.injection_peers_min
            if source is None and is_quorate and not self._waits_for_starters(peers):
                self._inject()
        else:
            source = next((peer for peer in sources if peer.node == held.master), None)
        if source is not None and source.advert.epoch >= held.epoch:
            self._fetch(source, members)

    def _waits_for_starters(self, peers: Sequence[SpacePeer]) -> bool:
        if self._context.now - self.holding.since > _STARTERS_DISCOVERIES * self._settings.discovery_s:
            return False
        same_role = (peer.advert for peer in peers if peer.role == self._settings.role)
        is_any_starting = any(not advert.is_ready and advert.can_lead for advert in same_role)
        return is_any_starting or self._context.has_unanswered_peers()

    def _inject(self) -> None:
        """What was on disk, if anything complete was, becomes the set of the domain."""
        held = self.holding
        held.moves(LifecycleCause.CHOSEN, self._context.now)
        held.counters.injections += 1
        past = self._epochs.next()
        if self._is_base_old:
            self._age_warning = f"{_age(self._base_age_s)}, longer than cleanup_delay, was injected: objects that were "
            self._age_warning += "deleted since may be back"
            self._context.trace(Level.WARNING, self._age_warning, name_space=held.name)
        marks = self._epochs.marks(past)
        self._context.trace(Level.INFO, "injecting", name_space=held.name, samples=held.set.count, epoch=past[0])
        stored = held.stored
        self._epochs.complete(past, held.change(marks=marks) if stored.has_base else stored.whole(marks))

    def _fetch(self, source: SpacePeer, members: Sequence[SpacePeer]) -> None:
        held = self.holding
        held.moves(LifecycleCause.MASTER_COMPLETE, self._context.now)
        is_ours = self._is_our_past(source) or self._is_delayed(source, members)
        if not is_ours and self._is_base_old and held.set.count:
            self._age_warning = f"{_age(self._base_age_s)}, longer than cleanup_delay, was set aside"
            self._context.trace(Level.WARNING, self._age_warning, name_space=held.name)
        policy = MergePolicy.MERGE if is_ours else MergePolicy.CATCHUP
        self._runner.start(Conflict(AlignmentPurpose.FETCH, source, policy), _FOREVER)

    def _is_our_past(self, source: SpacePeer) -> bool:
        """Our set on disk belongs to the source's, and is young enough that deletions since are remembered."""
        held = self.holding
        is_known = held.epoch == source.advert.epoch or held.epoch in source.advert.lineage
        is_known |= held.policy.merge_for(self._settings.role, self._settings.role) is MergePolicy.MERGE
        return held.stored.has_base and held.epoch != NO_EPOCH and is_known and not self._is_base_old

    @property
    def _base_age_s(self) -> float:
        return (self._context.stamp() - self.holding.stored.base_alive) / 1e9

    @property
    def _is_base_old(self) -> bool:
        """The set on disk was left alone for so long that no service remembers what was deleted meanwhile."""
        return self.holding.stored.has_base and self._base_age_s >= self._settings.cleanup_s

    def judge_base(self) -> None:
        """Say how good the set on disk is, before a master is elected."""
        stored = self.holding.stored
        self.upkeep.start()
        if stored.has_base:
            stored.quality = _QUALITY_OLD if self._is_base_old else max(_QUALITY_FRESH, stored.quality)

    def _is_delayed(self, source: SpacePeer, members: Sequence[SpacePeer]) -> bool:
        """The domain is empty and was never written to: the best late set may still be used, when all want that."""
        held = self.holding
        if not (held.policy.delayed_alignment and source.advert.is_pristine and held.set.count):
            return False
        others = [peer for peer in members if not peer.advert.is_complete]
        best = max([(peer.advert.quality, peer.node) for peer in others], default=(0, ""))
        return (held.stored.quality, self._settings.node) > best

    def _lead_or_follow(self, peers: Sequence[SpacePeer], members: Sequence[SpacePeer]) -> None:
        held = self.holding
        if held.is_agreed and held.master == self._settings.node and self._takes_lead(members):
            return
        if self._is_settling:
            return
        found = conflicts.find(
            held, peers, node=self._settings.node, role=self._settings.role, now=self._context.now,
            reconcile_s=self._settings.reconcile_s,
        )  # fmt: skip
        self.conflicts = [str(conflict) for conflict in found]
        if found:
            self._resolve(found[0])

    def _takes_lead(self, members: Sequence[SpacePeer]) -> bool:
        """As master: start a new epoch where one is due.  True when it did."""
        held = self.holding
        complete = frozenset(peer.node for peer in members if peer.advert.is_complete)
        is_lost = bool(self._complete_members - held.choice.members)
        is_behind = any(peer.advert.epoch.counter > held.epoch.counter for peer in members) or any(
            peer.advert.epoch.counter == held.epoch.counter and peer.advert.epoch != held.epoch for peer in members
        )
        self._complete_members = complete
        if held.epoch.master == self._settings.node and not is_lost and not is_behind:
            return False
        self._epochs.start()
        return True

    @property
    def _is_settling(self) -> bool:
        """Deleted samples leave the set, and peers may be further with it: what differs now is equal soon, unless
        deletions come faster than the set is cleaned."""
        duration_s = self._context.now - self._cleaned_at
        return self.holding.set.is_cleaning and duration_s < _CLEANING_ROUNDS * self._settings.reconcile_s

    # -- resolving

    def _resolve(self, conflict: Conflict) -> None:
        held = self.holding
        purpose, peer, policy = conflict
        self._context.trace(Level.FINE, "resolving", name_space=held.name, peer=peer.node, conflict=str(conflict))
        if policy is MergePolicy.IGNORE:
            self._take_note(conflict)
        elif policy is MergePolicy.DELETE:
            t = self._context.stamp()
            held.counters.merges += 1
            held.joined(policy)
            self.delete([Deletion(topic_filter, t) for topic_filter in sorted(held.space.filters)])
            self._take_note(conflict)
        elif purpose is not AlignmentPurpose.FOREIGN and peer.advert.digest == held.set.digest:
            self._take_note(conflict)  # an advert may be old, but within a role sets are compared again and again
        else:
            is_split = purpose in (AlignmentPurpose.COLLECT, AlignmentPurpose.FOREIGN) or (
                purpose is AlignmentPurpose.FOLLOW and held.epoch not in peer.advert.lineage
            )
            if is_split:
                held.moves(LifecycleCause.SPLIT, self._context.now)
                held.counters.merges += 1
            self._runner.start(conflict, self._context.stamp())

    def _take_note(self, conflict: Conflict) -> None:
        """The conflict needs no data, or no more data: remember that it was dealt with."""
        held = self.holding
        advert = conflict.peer.advert
        if conflict.purpose is AlignmentPurpose.FOLLOW:
            self._epochs.adopt((advert.epoch, self._epochs.lineage_after(conflict.policy, advert.lineage)))
        elif conflict.purpose is AlignmentPurpose.COLLECT:
            self._epochs.start(advert.epoch, *advert.lineage)
        elif conflict.purpose is AlignmentPurpose.FOREIGN:
            held.merged[conflict.peer.role] = advert.epoch
            if conflict.policy is MergePolicy.DELETE:
                self._epochs.start()

    # -- messages and time

    def received(self, message: AlignRequest | AlignProgress | AlignData | AlignEnd) -> None:
        """A message about alignment, from a peer that is connected and compatible."""
        now = self._context.now
        if isinstance(message, AlignRequest):
            if message.to == self._settings.node and self.holding.policy.aligner:
                self.aligner.requested(message, now, self._context.askers(self.holding.name))
        elif isinstance(message, AlignProgress):
            if message.to == self._settings.node:
                self.aligner.progressed(message, now)
        else:
            self._runner.received(message)

    def left(self, node: str) -> None:
        """A peer is gone, or is not compatible."""
        held = self.holding
        self.aligner.left(node)
        held.differs_since.pop(node, None)
        # What we joined with may change unseen while it is away: join again when it is back.
        for role in [role for role, epoch in held.merged.items() if epoch.master == node]:
            del held.merged[role]

    def live_lost(self, *, is_read: bool, is_sure: bool) -> None:
        """As in `LiveLost`."""
        self.holding.merged.clear()  # within a role sets are compared anyway
        if is_read:
            self.late_samples.delayed(self._context.now)
        if is_sure:
            self.behind.lost(self._context.now)

    def pump(self) -> None:
        """Do a bounded amount of what is under way."""
        held = self.holding
        if not held.set.is_cleaning:
            self._cleaned_at = self._context.now
        for message in self.aligner.pump(self._context.now, held.standing(is_settling=self._is_settling)):
            self._context.send(message)
        if self._incoming:
            self.file_some()
        if held.alignment is not None and held.is_applying:
            self._runner.apply_some(held.alignment)
        elif held.may_clean:
            self._context.store(held, held.change(removed=held.stored.clean_some(self._settings.clean_buckets)))

    def tick(self) -> None:
        """Time passed."""
        self.upkeep.tick()
        if self.late_samples.take(self._context.now):
            self.holding.joined(MergePolicy.MERGE)  # readers that were served before must read again

    def next_deadline(self) -> float:
        """When `tick` is due."""
        held, now = self.holding, self._context.now
        if self._incoming or held.is_applying or held.may_clean or self.aligner.is_ready_to_send(now):
            return now
        alignment = held.alignment.next_deadline() if held.alignment else float("inf")
        readers = min(self.late_samples.next_deadline(), self.behind.next_deadline())
        return min(alignment, self.upkeep.next_deadline(), self.aligner.next_deadline(), readers)


def _age(age_s: float) -> str:
    """How an old set is spoken of."""
    unit, seconds = ("days", 86_400.0) if age_s >= 172_800 else ("hours", 3600.0) if age_s >= 7200 else ("s", 1.0)
    return f"a set on disk that was last maintained {age_s / seconds:.1f} {unit} ago"


def _as_member(peer: SpacePeer) -> ElectionMember:
    advert = peer.advert
    return ElectionMember(
        node=peer.node,
        incarnation=peer.service.advert.incarnation,
        can_lead=advert.can_lead,
        is_complete=advert.is_complete,
        priority=advert.priority,
        leads=advert.epoch.counter if advert.is_master else 0,
        quality=advert.quality,
    )
