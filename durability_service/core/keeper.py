"""Drives one name-space through its life: takes part in elections, leads or follows, aligns, joins splits.

Theory of operation
-------------------
Each complete set carries an *epoch*, ``(counter, master)``, and a *lineage*: the earlier epochs whose data is in it.
A master starts a new epoch when it takes over, when a member of its view is lost (from then on there may be another
side), and when it has joined with another side.  So after a split both sides have epochs that the other does not know,
and that is how a split is recognised: an epoch that is in nobody's lineage.

* A follower whose epoch is in its master's lineage has the same data, give or take what is on its way: union.
* Otherwise the two are sides of a split, and the merge policy for the role decides.
* Sets of the same epoch that stay different lost something live: union, bucket by bucket.

A new epoch is made durable before it is advertised.  A service that starts with a set on disk adds it to the master's
when it is of the master's own past, or when sides of a split are merged anyway; otherwise it is set aside.
"""

from __future__ import annotations

from collections.abc import Sequence

from durability_service.core.alignment import conflicts
from durability_service.core.alignment.alignee import AlignmentPurpose
from durability_service.core.alignment.aligning import Aligning, Context
from durability_service.core.alignment.conflicts import Conflict, SpacePeer
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Level
from durability_service.core.election import ElectionMember, choose, is_agreed
from durability_service.core.holding import Holding
from durability_service.core.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import NO_EPOCH, DeletionNotice, Epoch
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample

_FOREVER = 1 << 63
_RENEW_S = 60.0
_RENEW_PART = 0.1
"""Of ``cleanup_s``: a set that is maintained is noted as such this often, or every `_RENEW_S`, whichever comes first.
One small row then; and what a service is taken to have been away for longer than it was is no more than that."""
_QUALITY_OLD, _QUALITY_FRESH = 1, 2
"""Of sets on disk: one that is too old comes before none, and after every other, also one that is empty."""
_STARTERS_DISCOVERIES = 3
"""Peers that still discover are waited for, for this many discovery periods, before data is injected."""


class Keeper(Aligning):
    """Decides for one name-space."""

    def __init__(self, context: Context, holding: Holding) -> None:
        super().__init__(context, holding)
        self._renew_due = context.now
        """When the store is to be told that the set is still maintained."""
        self._age_warning = ""
        """What became of a set on disk that was too old."""

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
        self.latecomers.live(samples)
        if not held.is_aligned:
            if not held.hold(samples, token):
                self._context.refuse(token)
            return
        added, removed = held.add(samples)
        self._context.store(
            held, held.change(added, removed), lambda: self._context.acknowledge(token) if token else None
        )

    def delete(self, deletions: Sequence[Deletion]) -> bool:
        """Delete history.  False when all of it was known."""
        held = self.holding
        gone = held.delete(deletions)
        if gone is None:
            return False
        self._context.trace(Level.INFO, "history deleted", name_space=held.name, samples=len(gone))
        if held.has_base or held.is_marking:  # there is, or there is about to be, a complete set on disk
            marks = held.marks(*held.marked, self._context.stamp())
            self._context.store(held, held.change([], held.for_store(gone), marks), _nothing)
        return True

    # -- deciding

    def evaluate(self, now: float, peers: Sequence[SpacePeer]) -> None:
        """Look at what everybody says and do what follows."""
        held = self.holding
        if held.phase is Phase.DORMANT and held.is_wanted:
            held.moves(LifecycleCause.INTEREST, now)
        if held.phase in (Phase.DISCOVER, Phase.DORMANT, Phase.TERMINATING):
            return
        members = [peer for peer in peers if peer.role == self._settings.role and peer.advert.is_ready]
        self._look_whether_behind(now, members)
        self._elect(members)
        self._warn(members)
        held.has_other_roles = any(peer.role != self._settings.role for peer in peers)
        held.epoch_max = max([held.epoch_max, *(peer.advert.epoch.counter for peer in peers)])
        if held.applying or held.is_marking:
            return
        if held.alignment:
            self._watch_source(now, peers)
        elif held.phase is Phase.ELECT:
            self._begin(now, peers, members)
        elif held.is_aligned:
            self._lead_or_follow(now, peers, members)

    def _look_whether_behind(self, now: float, members: Sequence[SpacePeer]) -> None:
        if not self.lagging.is_behind:
            return
        held = self.holding
        of_one_epoch = [peer for peer in members if peer.advert.is_complete and peer.advert.epoch == held.epoch]
        digest = held.set.digest
        said = [(peer.node, peer.advert.digest == digest, peer.service.heard_at) for peer in of_one_epoch]
        self.lagging.look(now, said)

    @property
    def is_readable(self) -> bool:
        """Whether readers may be told that what they get is complete."""
        return self.holding.is_complete and not self.lagging.is_behind

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
            warnings.append("nobody may lead: an aligner with a master_priority above 0 that wants the data is missing")
        own = held.policy.merge_for(self._settings.role, self._settings.role)
        if any(peer.node == held.master and conflicts.is_apart(held, peer, own) for peer in members if held.is_aligned):
            warnings.append(f"this set is of another side than that of {held.master}, and merge is IGNORE: they differ")
        for warning in warnings:
            if warning not in held.warnings:
                self._context.trace(Level.WARNING, warning, name_space=held.name)
        held.warnings = warnings

    def _begin(self, now: float, peers: Sequence[SpacePeer], members: Sequence[SpacePeer]) -> None:
        """Nothing is complete here yet: fetch from whoever is, or inject when we are chosen and nobody is."""
        held = self.holding
        if not held.is_agreed:
            return
        sources = [peer for peer in members if peer.advert.is_complete and peer.advert.is_aligner]
        if held.master == self._settings.node:
            source = max(sources, key=lambda peer: (peer.advert.epoch, peer.advert.count, peer.node), default=None)
            is_quorate = len(members) >= self._settings.injection_peers_min
            if source is None and is_quorate and not self._waits_for_starters(now, peers):
                self._inject(now)
        else:
            source = next((peer for peer in sources if peer.node == held.master), None)
        if source is not None and source.advert.epoch >= held.epoch:
            self._fetch(now, source, members)

    def _waits_for_starters(self, now: float, peers: Sequence[SpacePeer]) -> bool:
        if now - self.holding.since > _STARTERS_DISCOVERIES * self._settings.discovery_s:
            return False
        same_role = (peer.advert for peer in peers if peer.role == self._settings.role)
        is_any_starting = any(not advert.is_ready and advert.can_lead for advert in same_role)
        return is_any_starting or self._context.has_strangers()

    def _inject(self, now: float) -> None:
        """What was on disk, if anything complete was, becomes the set of the domain."""
        held = self.holding
        held.moves(LifecycleCause.CHOSEN, now)
        held.counters.injections += 1
        held.is_marking = True
        epoch, lineage = self._next_epoch()
        if self.is_base_old:
            self._age_warning = f"{_age(self._base_age_s)}, longer than cleanup_delay, was injected: objects that were "
            self._age_warning += "deleted since may be back"
            self._context.trace(Level.WARNING, self._age_warning, name_space=held.name)
        marks = held.marks(epoch, lineage, self._context.stamp())
        self._context.trace(Level.INFO, "injecting", name_space=held.name, samples=held.set.count, epoch=epoch)
        self._context.store(
            held, held.change([], [], marks) if held.has_usable_base else held.whole(marks),
            lambda: self._completed(epoch, lineage),
        )  # fmt: skip

    def _fetch(self, now: float, source: SpacePeer, members: Sequence[SpacePeer]) -> None:
        held = self.holding
        held.moves(LifecycleCause.MASTER_COMPLETE, now)
        is_ours = self._is_our_past(source) or self._is_delayed(source, members)
        if not is_ours and self.is_base_old and held.set.count:
            self._age_warning = f"{_age(self._base_age_s)}, longer than cleanup_delay, was set aside"
            self._context.trace(Level.WARNING, self._age_warning, name_space=held.name)
        self._align(
            now, source, AlignmentPurpose.FETCH, MergePolicy.MERGE if is_ours else MergePolicy.CATCHUP, _FOREVER
        )

    def _is_our_past(self, source: SpacePeer) -> bool:
        """Our set on disk belongs to the source's, and is young enough that deletions since are remembered."""
        held = self.holding
        is_known = held.epoch == source.advert.epoch or held.epoch in source.advert.lineage
        is_known |= held.policy.merge_for(self._settings.role, self._settings.role) is MergePolicy.MERGE
        return held.has_base and held.epoch != NO_EPOCH and is_known and not self.is_base_old

    @property
    def _base_age_s(self) -> float:
        return (self._context.stamp() - self.holding.base_alive) / 1e9

    @property
    def is_base_old(self) -> bool:
        """The set on disk was left alone for so long that nobody remembers any more what was deleted meanwhile."""
        return self.holding.has_base and self._base_age_s >= self._settings.cleanup_s

    def judge_base(self) -> None:
        """Say how good the set on disk is, before anybody is elected."""
        held = self.holding
        self._renew_due = self._context.now + self._renew_s
        if held.has_base:
            held.quality = _QUALITY_OLD if self.is_base_old else max(_QUALITY_FRESH, held.quality)

    def _is_delayed(self, source: SpacePeer, members: Sequence[SpacePeer]) -> bool:
        """The domain is empty and was never written to: the best late set may still be used, when all want that."""
        held = self.holding
        if not (held.policy.delayed_alignment and source.advert.is_pristine and held.set.count):
            return False
        others = [peer for peer in members if not peer.advert.is_complete]
        best = max([(peer.advert.quality, peer.node) for peer in others], default=(0, ""))
        return (held.quality, self._settings.node) > best

    def _lead_or_follow(self, now: float, peers: Sequence[SpacePeer], members: Sequence[SpacePeer]) -> None:
        held = self.holding
        if held.is_agreed and held.master == self._settings.node and self._takes_lead(members):
            return
        found = conflicts.find(
            held, peers, node=self._settings.node, role=self._settings.role, now=now,
            reconcile_s=self._settings.reconcile_s,
        )  # fmt: skip
        held.conflicts = [str(conflict) for conflict in found]
        if found:
            self._resolve(now, found[0])

    def _takes_lead(self, members: Sequence[SpacePeer]) -> bool:
        """As master: start a new epoch where one is due.  True when it did."""
        held = self.holding
        complete = frozenset(peer.node for peer in members if peer.advert.is_complete)
        is_lost = bool(held.agreed_members - held.choice.members)
        is_behind = any(peer.advert.epoch.counter > held.epoch.counter for peer in members) or any(
            peer.advert.epoch.counter == held.epoch.counter and peer.advert.epoch != held.epoch for peer in members
        )
        held.agreed_members = complete
        if held.epoch.master == self._settings.node and not is_lost and not is_behind:
            return False
        self._start_epoch()
        return True

    # -- resolving

    def _resolve(self, now: float, conflict: Conflict) -> None:
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
                held.moves(LifecycleCause.SPLIT, now)
                held.counters.merges += 1
            self._align(now, peer, purpose, policy, self._context.stamp())

    def _take_note(self, conflict: Conflict) -> None:
        """The conflict needs no data, or no more data: remember that it was dealt with."""
        held = self.holding
        advert = conflict.peer.advert
        if conflict.purpose is AlignmentPurpose.FOLLOW:
            self._adopt(advert.epoch, self._joint_lineage(conflict.policy, advert.lineage))
        elif conflict.purpose is AlignmentPurpose.COLLECT:
            self._start_epoch(advert.epoch, *advert.lineage)
        elif conflict.purpose is AlignmentPurpose.FOREIGN:
            held.merged[conflict.peer.role] = advert.epoch
            if conflict.policy is MergePolicy.DELETE:
                self._start_epoch()

    def _start_epoch(self, *joined: Epoch) -> None:
        self._adopt(*self._next_epoch(*joined))

    def _adopt(self, epoch: Epoch, lineage: tuple[Epoch, ...]) -> None:
        """Make an epoch ours; it is durable before anybody hears of it."""
        held = self.holding
        held.is_marking = True

        def adopted() -> None:
            held.is_marking = False
            held.epoch, held.lineage = epoch, lineage
            self._context.trace(Level.FINE, "epoch", name_space=held.name, epoch=epoch)

        marks = held.marks(epoch, lineage, self._context.stamp())
        self._context.store(held, held.change([], [], marks), adopted)

    def notice(self, deletions: Sequence[Deletion]) -> DeletionNotice:
        return DeletionNotice(node=self._settings.node, name_space=self.holding.name, deletions=list(deletions))

    def sweep(self) -> None:
        """Forget old deletions, one bucket at a time."""
        held = self.holding
        if not held.is_aligned:
            return
        before = self._context.stamp() - int(self._settings.cleanup_s * 1e9)
        gone = held.set.sweep(held.sweep_next, before)
        held.sweep_next = (held.sweep_next + 1) % held.set.bucket_count
        held.counters.swept += len(gone)
        self._context.store(held, held.change([], held.for_store(gone)), _nothing)
        held.set.cool(self._context.now, self._settings.heartbeat_s, samples_max=self._settings.cool_samples)

    def renew(self, *, at_once: bool = False) -> None:
        """Have the store remember that the set is maintained, so that who is idle does not look as if away."""
        held = self.holding
        now = self._context.now
        if not self._may_renew or (now < self._renew_due and not at_once):
            return
        self._renew_due = now + self._renew_s
        marks = held.marks(*held.marked, self._context.stamp())
        self._context.store(held, held.change([], [], marks), _nothing)

    @property
    def _renew_s(self) -> float:
        return min(_RENEW_S, _RENEW_PART * self._settings.cleanup_s)

    @property
    def _may_renew(self) -> bool:
        held = self.holding
        return held.is_persistent and held.is_aligned and held.applying is None and not held.is_marking

    def tell_readers(self) -> None:
        """Have those who were served read again, when something came late."""
        if self.latecomers.take(self._context.now):
            self.holding.joined(MergePolicy.MERGE)

    def expire(self) -> None:
        """Forget samples whose lifespan is over."""
        held = self.holding
        if held.is_aligned and held.applying is None:  # what is being applied is told to the store at its end
            gone = held.expiry.step(self._context.now, self._context.stamp())
            self._context.store(held, held.change([], held.for_store(gone)), _nothing)

    def next_deadline(self) -> float:
        held = self.holding
        if held.applying is not None or held.aligner.is_ready_to_send(self._context.now):
            return self._context.now
        alignment = held.alignment.next_deadline() if held.alignment else float("inf")
        expiry = held.expiry.next_deadline() if held.is_aligned else float("inf")
        renewal = self._renew_due if self._may_renew else float("inf")
        readers = min(self.latecomers.next_deadline(), self.lagging.next_deadline())
        return min(alignment, expiry, renewal, held.aligner.next_deadline(), readers)


def _nothing() -> None:
    """What to do after something that nobody waits for."""


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
