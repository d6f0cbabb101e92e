"""The durability service without its shell: peers, name-spaces, adverts, and the order of what becomes durable.

``step(now, wall_ns, event) -> effects`` is all there is to it.  ``now`` is a monotonic time in seconds, ``wall_ns`` the
wall clock.  The shell sends what is to be sent, stores what is to be stored, in order, and calls again with the next
event, or with `Tick` at `next_deadline`.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from durability_service.core.alignment.conflicts import SpacePeer
from durability_service.core.clocks import ClocksAhead
from durability_service.core.effects import (
    AcknowledgeRange,
    DeleteHistory,
    Effect,
    Event,
    Interest,
    Level,
    Live,
    LiveLost,
    NameTaken,
    Received,
    Restored,
    Send,
    Stored,
    StoreOperation,
    StoreSamples,
    Terminate,
    Tick,
    Trace,
)
from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.keeper import Keeper
from durability_service.core.keeping.lifecycle import LifecycleCause, Phase
from durability_service.core.messages import PROTOCOL, Advert, DeletionNotice, Message, NameSpaceAdvert
from durability_service.core.namespaces import NameSpace, incompatibility, intersect, policy_for
from durability_service.core.peers.membership import Membership, Peer, PeerChange
from durability_service.core.peers.name_clashes import NameClashes
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample
from durability_service.core.sets.stored_buckets import BucketMemory, BucketRows
from durability_service.core.settings import ServiceSettings
from pubsub_api.core.errors import InvalidTopic

_ADVERT_INTERVAL_MIN = 0.1
"""Of a heartbeat: adverts are not sent closer together than this."""
_EVALUATE_DELAY = 0.03
"""Of a heartbeat: what peers say is looked at together."""
_topic = operator.itemgetter(0)
"""Of a sample."""


class DurabilityCore:
    """Not thread-safe: the owner serialises calls."""

    def __init__(
        self, settings: ServiceSettings, restored: Mapping[str, Restored], now: float, rows: BucketRows | None = None
    ) -> None:
        """``restored`` is what the store found, by name-space; ``rows`` reads from it, whenever the core is called.
        What that raises leaves the core in no state to go on."""
        self.settings = settings
        self.memory = BucketMemory(settings.hot_bytes, rows)
        self.now = now
        self._newest = 0
        """The newest timestamp of a publisher that was believed."""
        self._wall_ns = 0
        self.clocks_ahead = ClocksAhead()
        self.membership = Membership(settings.node, settings.incarnation, settings.expiry_s, settings.peers_max)
        self.name_clashes = NameClashes(settings.node, settings.incarnation, settings.expiry_s)
        self._rules = settings.rules.fingerprint()
        self.keepers: dict[str, Keeper] = {}
        self._restored = dict(restored)
        self._spaces_of_topics: dict[str, Keeper | None] = {}
        self._effects: list[Effect] = []
        self._requests = 0
        self._adverts = 0
        self._operations = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._open_tokens: dict[int, int] = {}
        self._heartbeat_due = now
        self._advert_sent = float("-inf")
        self._evaluate_due = now
        self._told: object = None
        self._warned: set[str] = set()
        self.is_terminating = False
        self.unwanted = 0
        """Live samples of topics that no name-space here keeps."""
        for space in settings.name_spaces:
            self._add(space)

    # -- the one entrance

    def step(self, now: float, wall_ns: int, event: Event) -> list[Effect]:
        """Something happened.  Returns what is to be done about it, in order."""
        self.now, self._wall_ns = max(now, self.now), wall_ns
        if isinstance(event, Live):
            self._live(event)
        else:
            self._handle(event)
            if self.now >= self._evaluate_due:
                self._advance()
            else:
                self._pump()
        effects, self._effects = self._effects, []
        return effects

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            self._received(event.message)
        elif isinstance(event, Stored):
            self._stored(event.operation)
        elif isinstance(event, DeleteHistory):
            self._delete_history(event.filters)
        elif isinstance(event, Terminate):
            self._terminate()
        else:
            self._tell_keepers(event)
        if isinstance(event, Received | Stored):
            # Many of these come together: one look at the whole a moment later is enough.
            self._evaluate_due = min(self._evaluate_due, self.now + _EVALUATE_DELAY * self.settings.heartbeat_s)
        else:
            self._evaluate_due = self.now

    def _tell_keepers(self, event: Event) -> None:
        for keeper in self.keepers.values():
            if isinstance(event, Tick):
                keeper.tick()
            elif isinstance(event, LiveLost):
                keeper.live_lost(is_read=event.is_read, is_sure=event.is_sure)
            elif isinstance(event, Interest) and keeper.holding.name in event.name_spaces:
                keeper.holding.is_wanted |= keeper.holding.may_keep

    def next_deadline(self) -> float:
        """When `Tick` is due, at the latest."""
        due = [self._heartbeat_due, self._evaluate_due]
        due += (keeper.next_deadline() for keeper in self.keepers.values())
        if self._signature() != self._told:
            due.append(self._advert_due())
        return max(self.now, min(due))

    # -- what keepers use

    def send(self, message: Message) -> None:
        self._effects.append(Send(message))

    def store(
        self, holding: Holding, operations: Sequence[StoreOperation], then: Callable[[], None] = lambda: None
    ) -> None:
        if not operations or not holding.is_persistent:
            # Nothing to write; but what was to be written before must be durable before any process relies on this.
            if self._waiting and holding.is_persistent:
                self._waiting.append((self._operations, then))
            else:
                then()
            return
        for operation in operations:
            self._operations += 1
            self._effects.append(StoreSamples(self._operations, operation))
        self._waiting.append((self._operations, holding.stored.when_durable(operations)))
        self._waiting.append((self._operations, then))

    def trace(self, level: Level, what: str, **fields: Any) -> None:
        self._effects.append(Trace(level, what, fields))

    def stamp(self) -> int:
        # Of the wall clock nothing is remembered: a moment in which it is ahead must not last.
        return max(self._wall_ns, min(self._newest, self._wall_ns + self._skew_max_ns))

    def request_number(self) -> int:
        self._requests += 1
        return self._requests

    def askers(self, name_space: str) -> Set[str]:
        role = self.settings.role
        return {one.node for one in self._peers(name_space) if one.role == role and not one.advert.is_complete}

    def refuse(self, token: int) -> None:
        self._open_tokens.pop(token, None)

    def acknowledge(self, token: int) -> None:
        if token not in self._open_tokens:
            return  # another part of the same event was refused
        self._open_tokens[token] -= 1
        if not self._open_tokens[token]:
            del self._open_tokens[token]
            self._effects.append(AcknowledgeRange(token))

    def has_unanswered_peers(self) -> bool:
        return any(not one.is_connected and not one.is_one_way for one in self.membership.peers.values())

    @property
    def is_filing(self) -> bool:
        """Live samples wait for the next step."""
        return any(keeper.is_filing for keeper in self.keepers.values())

    def without_aligner(self) -> list[str]:
        """Name-spaces whose data is wanted here, and which no service has led for a discovery period."""
        held = [keeper.holding for keeper in self.keepers.values()]
        patience_s = self.settings.discovery_s
        return [
            one.name
            for one in held
            if one.phase is Phase.ELECT and not one.choice.candidate and self.now - one.since >= patience_s
        ]

    @property
    def _skew_max_ns(self) -> int:
        return int(self.settings.clock_skew_max_s * 1e9)

    # -- live data

    def _live(self, event: Live) -> None:
        parts: dict[str, list[Sample]] = {}
        newest = 0
        token = event.token
        wall_ns, clocks = self._wall_ns, self.clocks_ahead
        limit = wall_ns + self._skew_max_ns
        for topic, together in itertools.groupby(event.samples, _topic):
            samples = list(together)
            keeper = self._keeper_of(topic)
            if keeper is None:
                self.unwanted += len(samples)
                continue
            ahead = [sample for sample in samples if sample[3] > limit]
            if ahead:
                self._tell_ahead(ahead)
                keeper.holding.counters.from_the_future += len(ahead)
                kept = [sample for sample in samples if clocks.is_kept(sample[3], wall_ns)]
                if len(kept) < len(samples):
                    keeper.holding.counters.future_refused += len(samples) - len(kept)
                    samples, token = kept, 0  # what was not taken must not be acknowledged along with the rest
            if samples:
                newest = max(newest, *(sample[3] for sample in samples if sample[3] <= limit), 0)
                parts.setdefault(keeper.holding.name, []).extend(samples)
        self._newest = max(newest, self._newest)
        if token and parts:
            self._open_tokens[token] = len(parts)
        for name, samples in parts.items():
            self.keepers[name].live(samples, token)

    def _tell_ahead(self, samples: Sequence[Sample]) -> None:
        for writer, ahead_s in self.clocks_ahead.note(samples, self.now, self._wall_ns):
            self.trace(Level.WARNING, "the clock of a publisher is ahead", publisher=writer, seconds=ahead_s)

    def keeps(self, topic: str) -> bool:
        """Whether data of the topic is kept here."""
        return self._keeper_of(topic) is not None

    def keeps_fully(self, topic: str) -> bool:
        """Whether data of the topic is kept here as well as its kind says: PERSISTENT data on disk."""
        keeper = self._keeper_of(topic)
        return keeper is not None and keeper.holding.policy.durability >= self.settings.rules.kind_of(topic)

    def _keeper_of(self, topic: str) -> Keeper | None:
        try:
            return self._spaces_of_topics[topic]
        except KeyError:
            found = next((one for one in self.keepers.values() if one.holding.matcher.match(topic)), None)
            keeper = found if found and found.holding.keeps(topic) else None
            self._spaces_of_topics[topic] = keeper
            return keeper

    def _stored(self, operation: int) -> None:
        while self._waiting and self._waiting[0][0] <= operation:
            self._waiting.popleft()[1]()

    # -- deletion

    def _delete_history(self, filters: Sequence[str]) -> None:
        t = self.stamp()
        for keeper in self.keepers.values():
            own = keeper.holding.space.filters
            deletions = [Deletion(one, t) for one in filters if any(intersect(one, mine) for mine in own)]
            if deletions and keeper.delete(deletions):
                self.send(DeletionNotice(node=self.settings.node, name_space=keeper.holding.name, deletions=deletions))

    def _noticed(self, notice: DeletionNotice) -> None:
        keeper = self.keepers.get(notice.name_space)
        if keeper:
            keeper.delete(notice.deletions)

    # -- peers

    def _received(self, message: Message) -> None:
        if message.node == self.settings.node:
            if isinstance(message, Advert) and message.domain == self.settings.domain:
                self._name_clash_came(message)
            return
        if isinstance(message, Advert):
            self._advert_came(message)
            return
        if self.membership.get(message.node) is None:
            return  # unknown, one-way or incompatible: nothing it says may have an effect
        if isinstance(message, DeletionNotice):
            self._noticed(message)
        elif message.name_space in self.keepers:
            self.keepers[message.name_space].received(message)

    def _name_clash_came(self, advert: Advert) -> None:
        is_proven = self.name_clashes.received(advert, self.now)
        self._heartbeat_due = min(self._heartbeat_due, self._advert_due())  # let it hear us soon
        if not is_proven or self.is_terminating:
            return
        (reason,) = self.name_clashes.warnings(self.now)
        self.trace(Level.SEVERE, reason, incarnation=advert.incarnation)
        if self.name_clashes.is_ours_to_end:
            self._terminate()
            self._effects.append(NameTaken(reason))

    def _advert_came(self, advert: Advert) -> None:
        if advert.domain != self.settings.domain:
            return
        changes = self.membership.received(advert, self.now)
        self._on_changes(changes)
        peer = self.membership.peers.get(advert.node)
        if peer is None:
            return
        if any(change is PeerChange.HEARD for change, _ in changes):
            self._heartbeat_due = min(self._heartbeat_due, self._advert_due())  # let it hear us soon
        self._judge(peer)
        if peer.is_connected and not peer.incompatibility:
            for space in advert.name_spaces:
                self._learn(peer, space)

    def _on_changes(self, changes: Sequence[tuple[PeerChange, str]]) -> None:
        for change, node in changes:
            level = Level.INFO if change in (PeerChange.HEARD, PeerChange.CONNECTED) else Level.WARNING
            self.trace(level, f"peer {change.value}", peer=node)
            if change in (PeerChange.EXPIRED, PeerChange.TERMINATED, PeerChange.RESTARTED, PeerChange.ONE_WAY):
                self._peer_left(node)

    def _peer_left(self, node: str) -> None:
        for keeper in self.keepers.values():
            keeper.left(node)

    def _judge(self, peer: Peer) -> None:
        advert = peer.advert
        spaces = [(one.name, one.filters) for one in advert.name_spaces]
        basis = spaces, advert.rules, advert.cleanup_s, len(self.keepers)
        if peer.judged == basis:
            return
        peer.judged = basis
        if advert.protocol != PROTOCOL:
            reason = f"it speaks version {advert.protocol} of the protocol, we speak {PROTOCOL}"
        elif advert.buckets != self.settings.buckets or advert.rules != self._rules:
            reason = "it is configured to keep other topics, another history or another number of buckets"
        elif advert.cleanup_s != self.settings.cleanup_s:
            # A service that forgets deletions earlier gets the objects back from the other, again and again.
            reason = f"its cleanup_delay is {advert.cleanup_s} s, ours is {self.settings.cleanup_s} s"
        else:
            reason = self._clash(advert.name_spaces)
        if reason != peer.incompatibility:
            peer.incompatibility = reason
            if reason:
                self.trace(Level.SEVERE, "incompatible peer", peer=peer.node, reason=reason)
                self._peer_left(peer.node)
            else:
                self.trace(Level.INFO, "peer has become compatible", peer=peer.node)

    def _clash(self, adverts: Sequence[NameSpaceAdvert]) -> str:
        try:
            theirs = [NameSpace(advert.name, frozenset(advert.filters)) for advert in adverts]
        except InvalidTopic as error:
            return f"a name-space of it is not valid: {error}"
        return incompatibility([keeper.holding.space for keeper in self.keepers.values()], theirs)

    def _learn(self, peer: Peer, advert: NameSpaceAdvert) -> None:
        """A name-space that is not configured here is taken over when a policy matches it."""
        if advert.name in self.keepers or len(self.keepers) >= self.settings.name_spaces_max:
            return
        if self._add(NameSpace(advert.name, frozenset(advert.filters))):
            self.trace(Level.CONFIG, "name-space learned", name_space=advert.name, peer=peer.node)
        elif advert.name not in self._warned:
            self._warned.add(advert.name)
            self.trace(Level.WARNING, "no policy for a name-space", name_space=advert.name, peer=peer.node)

    def _add(self, space: NameSpace) -> bool:
        policy = policy_for(space.name, self.settings.policies)
        if policy is None:
            return False
        restored = self._restored.pop(space.name, None)
        if restored and restored.filters and frozenset(restored.filters) != space.filters:
            self.trace(Level.WARNING, "the name-space was another one on disk: not used", name_space=space.name)
            restored = None
        holding = Holding(self.settings, space, policy, restored, self.now, self.memory)
        self.keepers[space.name] = Keeper(self, holding)
        self._spaces_of_topics.clear()
        return True

    # -- time

    def _advance(self) -> None:
        self._evaluate_due = self._heartbeat_due
        self._on_changes(self.membership.expire(self.now))
        for keeper in self.keepers.values():
            self._discover(keeper.holding)
            keeper.evaluate(list(self._peers(keeper.holding.name)))
        self._pump()
        self._advertise()

    def _pump(self) -> None:
        for keeper in self.keepers.values():
            keeper.pump()

    def _peers(self, name: str) -> Iterator[SpacePeer]:
        for peer in self.membership.connected():
            for advert in peer.advert.name_spaces:
                if advert.name == name:
                    yield SpacePeer(peer, advert)

    def _discover(self, holding: Holding) -> None:
        if holding.phase is not Phase.DISCOVER:
            return
        expected = self.settings.expected_peers
        has_all = expected > 0 and sum(1 for _ in self.membership.connected()) >= expected
        if has_all or self.now - holding.since >= self.settings.discovery_s:
            self.keepers[holding.name].judge_base()
            holding.moves(LifecycleCause.DISCOVERED if holding.is_wanted else LifecycleCause.DISCOVERED_LAZY, self.now)

    def _terminate(self) -> None:
        self.is_terminating = True
        for keeper in self.keepers.values():
            while keeper.is_filing:
                keeper.file_some()
            keeper.upkeep.renew()
            if keeper.holding.phase is not Phase.TERMINATING:
                keeper.holding.moves(LifecycleCause.STOPPED, self.now)
        self.send(self._advert())

    # -- adverts

    def _signature(self) -> object:
        return tuple(keeper.signature for keeper in self.keepers.values()), tuple(self._heard().items())

    def _heard(self) -> dict[str, int]:
        return self.membership.heard() | self.name_clashes.heard(self.now)

    def troubles(self) -> list[str]:
        """What is wrong and concerns all name-spaces."""
        return [*self.name_clashes.warnings(self.now), *self.clocks_ahead.warnings(self.now)]

    def _advert_due(self) -> float:
        return self._advert_sent + _ADVERT_INTERVAL_MIN * self.settings.heartbeat_s

    def _advertise(self) -> None:
        if self.is_terminating:
            self._heartbeat_due = float("inf")
            return
        signature = self._signature()
        is_news = signature != self._told and self.now >= self._advert_due()
        if self.now >= self._heartbeat_due or is_news:
            self._told = signature
            self._advert_sent = self.now
            self._heartbeat_due = self.now + self.settings.heartbeat_s
            self.send(self._advert())

    def _advert(self) -> Advert:
        settings = self.settings
        self._adverts += 1
        return Advert(
            protocol=PROTOCOL,
            domain=settings.domain,
            node=settings.node,
            incarnation=settings.incarnation,
            number=self._adverts,
            role=settings.role,
            rules=self._rules,
            buckets=settings.buckets,
            cleanup_s=settings.cleanup_s,
            is_terminating=self.is_terminating,
            heard=self._heard(),
            name_spaces=[keeper.holding.advert() for keeper in self.keepers.values()],
        )
