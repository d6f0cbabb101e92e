"""A process of the simulation: a consumer, a candidate, and the leader when it is its turn.

It does what the real ones do (`shared_subscriptions.consuming.subscriber`, `shared_subscriptions.leading.group`) with
the same cores. Its consumer is what a user would write: it acknowledges batches or single events, sooner or later, and
sometimes fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pubsub_api.testing.simulator.world import Violation, World
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.handler import LoanState
from shared_subscriptions.core.events import GroupEvent, PartitionPlace
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading.candidate import CandidateRole, Claim, LeaderRecord, SeenRecord
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.partitions import PartitionInfo
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.leading.records import decode_partition, encode_partition
from shared_subscriptions.names import Names
from shared_subscriptions.testing.simulator import profiles
from shared_subscriptions.testing.simulator.store import Outcome, SimStore, Stored, Write

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.network import Network
    from shared_subscriptions.testing.simulator.oracle import Oracle
    from shared_subscriptions.testing.simulator.scenario import Cores

TICK_S = 0.025
PATIENCE_S = 3.0
"""How long a process that leaves waits for what it has to give or get back."""
NAMES = Names("g")
_RECORD_BYTES_MAX = 1 << 20

_declaration = functools.lru_cache(declarations.decode)


class SimHost:
    """One life of a process.  ``name`` is its address, and never used again."""

    def __init__(
        self, world: World, network: Network, store: SimStore, oracle: Oracle, cores: Cores, *,
        name: str, member_name: str, drift: float, failing: float, hanging: float, is_exclusive: bool,
        on_death: Callable[[SimHost], None],
    ) -> None:  # fmt: skip
        self.world = world
        self.name = name
        self.member_name = member_name
        self.is_alive = True
        self.is_frozen = False
        self.is_cut_off = False
        """It cannot reach the store."""
        self.is_server = False
        """It may lead without being a member."""
        self.leader: Leader | None = None
        self.candidate = cores.candidate(LeaderRecord(id=name), profiles.LEASE)
        self.subscriptions: list[int] = []
        """Those that are wanted."""
        self._rate = 1.0 + drift
        self._start = world.between(0.0, 1000.0)
        self._network, self._store, self._oracle, self._cores = network, store, oracle, cores
        self._failing = failing
        self._hanging = hanging
        self._on_death = on_death
        self._hung: set[int] = set()
        """Calls that were given up."""
        self._calls = self._leases = 0
        self._told_ends: tuple[int, ...] = ()
        self._is_exclusive = is_exclusive
        self._serial = 0
        self._inbox: list[tuple[str, m.Message]] = []
        self._calls_waiting: list[Callable[[], None]] = []
        """What came on connections while it stood still, apart from messages."""
        self._homes: dict[str, str] = {}
        """Borrower -> the host that it was heard from."""
        self._is_writing = False
        self._is_leaving = False
        self._lease: ProcessLease | None = None
        self._is_beating = False
        self._beat_at = 0.0
        self._ping_all_at = 0.0
        self._commit_at = 0.0
        self._look_at = 0.0
        self._renew_at = 0.0
        self.handler = cores.handler(
            profiles.BORROWER,
            profiles.DELIVERY,
            self._new_id,
            name=member_name,
            progress_interval_s=profiles.PROGRESS_S,
        )
        self._tick()

    # -- time, as this host sees it

    @property
    def now(self) -> float:
        return self._start + self.world.now * self._rate

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if not self.is_frozen:
            self._work()
        self.world.after(self.world.between(0.5, 1.5) * TICK_S, self._tick)

    def _work(self) -> None:
        now = self.now
        for source, message in self._take_inbox():
            self._receive(source, message)
        waiting, self._calls_waiting = self._calls_waiting, []
        for call in waiting:
            call()
        if not self.is_cut_off:
            self._watch(now)
            self._tell_growth()
        self.handler.poll(now)
        if not self.is_cut_off:
            self._read()
        self._consume()
        if not self.is_alive:
            return
        self._lead(now)
        self._oracle.check_single_leader()
        self._send_out()
        self._ping_all(now)

    def _take_inbox(self) -> list[tuple[str, m.Message]]:
        inbox, self._inbox = self._inbox, []
        return inbox

    # -- what befalls it

    def crash(self) -> None:
        if self.is_alive:
            self.world.note(self.name, "crashes")
            self.is_alive = False
            self.leader = None
            self._on_death(self)

    def freeze(self) -> None:
        self.world.note(self.name, "freezes")
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            self.world.note(self.name, "thaws")
            self.is_frozen = False

    def reach_store(self) -> None:
        self.is_cut_off = False

    def leave(self, *, patience_s: float = PATIENCE_S) -> None:
        """The good way out: give partitions back, resign, stop.  A leader takes all partitions back if ``patience_s``
        is enough for that, and otherwise names who has them."""
        if not self.is_alive or self.is_frozen or self._is_leaving:
            return
        self.world.note(self.name, "leaves")
        self._is_leaving = True
        while self.subscriptions:
            self.unsubscribe()
        self._go_when_done(self.world.now + PATIENCE_S, self.world.now + patience_s)

    def _go_when_done(self, deadline: float, resign_by: float) -> None:
        if not self.is_alive:
            return
        is_late = self.world.now >= deadline
        if self.is_frozen or self._is_writing or (self.handler.agent.subscriptions and not is_late):
            self.world.after(0.02, self._go_when_done, deadline, resign_by)
        elif self.leader is None:
            self._gone()
        elif self.leader.holders() and self.world.now < resign_by:
            self.leader.retire(self.now)
            self.world.after(0.02, self._go_when_done, deadline, resign_by)
        else:
            leases = tuple(self.leader.holders())
            self._write(
                self.candidate.resignation(leases, self.now), lambda _outcome: self._gone(), with_partitions=True
            )
            self.leader.fall_silent("the leader resigned", is_final=False)
            self._send_out()

    def _gone(self) -> None:
        self.is_alive = False
        self.leader = None

    def stop_failing(self) -> None:
        self._failing = self._hanging = 0.0

    # -- subscriptions

    def subscribe(self) -> None:
        if self.is_alive:
            self._serial += 1
            self.subscriptions.append(self._serial)
            self.world.note(self.name, "subscribes as", self._serial)
            self.handler.subscribe(self._serial, is_ordered=self._declaration().mode == "shared", now=self.now)
            self._send_out()

    def unsubscribe(self) -> None:
        if self.is_alive and not self.is_frozen and self.subscriptions:
            subscription = self.subscriptions.pop()
            self.world.note(self.name, "unsubscribes", subscription)
            if subscription in self.handler.subscriptions:
                self.handler.unsubscribe(subscription, self.now)
            self._send_out()

    def _new_id(self) -> str:
        self._oracle.serial += 1
        return f"{self.name}.{self._oracle.serial}"

    # -- messages

    def on_arrival(self, source: str, message: m.Message) -> None:
        if self.is_alive:
            self._inbox.append((source, message))
            if not self.is_frozen:
                for origin, waiting in self._take_inbox():
                    self._receive(origin, waiting)
                self._send_out()

    def _receive(self, source: str, message: m.Message) -> None:
        if isinstance(message, m.TO_LEADER):
            self._homes[message.borrower] = source
            if self.leader is not None:
                self._oracle.leader_hears(self, self.leader, message)
        else:
            for subscription in self.handler.agent.subscriptions:
                self.handler.on_message(subscription, message, self.now)
            self._oracle.check_single_delivery()

    def _send_out(self) -> None:
        home = self.candidate.leader
        for _, message in self.handler.take_messages(self.now):
            self._oracle.borrower_says(message)
            if home is not None:
                self._network.send(self.name, home.id, message)
        if self.leader is not None:
            said, self.leader.messages = self.leader.messages, []
            for answer in said:
                self._oracle.leader_says(self.leader, answer)
                if answer.borrower in self._homes:
                    self._network.send(self.name, self._homes[answer.borrower], answer)

    # -- who leads

    def _watch(self, now: float) -> None:
        if self._is_writing or now < self._look_at or self._is_leaving:
            return
        if self.leader is not None and self.candidate.role is CandidateRole.LEADING:
            return  # it learns from its writes who leads
        self._look_at = now + profiles.LEASE.watch_s
        before = self.candidate.leader
        stored = self._store.records.get(NAMES.leader)
        self.candidate.observed(self._see(stored) if stored else None, now)
        self._step_down_if_deposed()
        if self.candidate.leader is not None and self.candidate.leader != before:
            for subscription in self.handler.agent.subscriptions:
                self.handler.agent.on_leader_changed(subscription, now)
        if self.candidate.wants_to_claim(now) and (self.subscriptions or self.is_server):
            if self._lease is None or self._lease.is_lost or not self._lease.version:
                self._look_at = now
                self._beat(now)
                return
            self.candidate.me = LeaderRecord(id=self.name, lease=self._lease.name)
            self._write(self.candidate.claim(now), self._claimed, with_partitions=False)

    def _see(self, stored: Stored) -> SeenRecord:
        record = candidates.decode(stored.value)
        lease = self._store.records.get(record.lease)
        return SeenRecord(record, stored.version, lease.version if lease else 0)

    def _step_down_if_deposed(self) -> None:
        if self.leader is not None and self.candidate.role in (CandidateRole.WATCHING, CandidateRole.RETIRED):
            self.world.note(self.name, "steps down")
            self.leader = None

    def _claimed(self, outcome: Outcome) -> None:
        self._settle(outcome)
        self._look_at = self.now
        if self.candidate.role is CandidateRole.LEADING:
            self._take_office()

    def _take_office(self) -> None:
        now = self.now
        epoch, predecessor = self.candidate.epoch, self.candidate.predecessor
        self.world.note(self.name, "leads in epoch", epoch)
        names = {name: record for name, record in self._store.records.items() if NAMES.is_partition(name)}
        declaration = self._declaration()
        make = self._cores.queue_leader if declaration.mode == "queue" else self._cores.leader
        self.leader = make(
            epoch, profiles.LEADER, declaration,
            {NAMES.partition_number(name): decode_partition(record.value) for name, record in names.items()},
            now=now, held_until=self.candidate.renewed_at + profiles.LEASE.leader_hold_s,
            waits_for=predecessor.leases if predecessor else (),
        )  # fmt: skip
        self._oracle.took_office(self.leader, predecessor.leases if predecessor else ())
        self._homes.clear()

    def _declaration(self) -> declarations.Declaration:
        return _declaration(self._store.records[NAMES.group].value)

    def _lead(self, now: float) -> None:
        if (
            self.candidate.role is CandidateRole.LEADING
            and self.leader is None
            and not (self._is_writing or self.is_cut_off)
        ):
            self._take_office()
        leader = self.leader
        if leader is None:
            return
        if (now >= self._renew_at or leader.is_outdated) and not self.is_cut_off:
            self._renew_at = now + 0.1
            self._renew_partitions(leader, now)
        leader.poll(now)
        if now >= self._beat_at:
            self._beat(now)
        if (
            ((now >= self._commit_at and leader.has_changes) or leader.wants_to_store)
            and not self._is_writing
            and self.candidate.role is CandidateRole.LEADING
        ):
            self._commit_at = now + profiles.LEASE.beat_s
            self._write(self.candidate.renewal(now), self._settle, with_partitions=True)

    def _renew_partitions(self, leader: Leader, now: float) -> None:
        declaration = self._declaration()
        infos = {
            shard * declaration.lanes + lane: PartitionInfo(self._store.starts[shard], len(self._store.shards[shard]))
            for shard in range(declaration.shards)
            for lane in range(declaration.lanes)
            if shard not in self._store.hidden
        }
        leader.on_declaration(declaration, now)
        leader.on_partitions(infos, now)

    # -- signs of life

    def _beat(self, now: float) -> None:
        """Renew the lease of this process, or make a new one."""
        if self._is_beating:
            return
        if self._lease is not None and self._lease.is_lost and self.leader is not None:
            self._after_lease(self._lease)
            return
        if self._lease is None or self._lease.is_lost:
            self._leases += 1
            self._lease = self._cores.process_lease(f"groups/lease/{self.name}.{self._leases}")
        lease = self._lease
        if lease.is_uncertain and self.is_cut_off:
            return
        if lease.is_uncertain:
            stored = self._store.records.get(lease.name)
            lease.observed(*((stored.value, stored.version) if stored else (None, 0)))
        if not lease.is_lost:
            self._is_beating = True
            self._beat_at = now + profiles.LEASE.beat_s
            self._put([lease.renewal(now)], functools.partial(self._after_beat, lease))
        self._after_lease(lease)

    def _after_beat(self, lease: ProcessLease, outcome: Outcome) -> None:
        self._is_beating = False
        if outcome.is_unknown:
            lease.unknown()
            self._beat_at = self.now
        elif outcome.versions is None:
            lease.refused()
        else:
            lease.written(outcome.versions[0])
        if self.is_alive:
            self._after_lease(lease)

    def _after_lease(self, lease: ProcessLease) -> None:
        if lease.is_lost and self.leader is not None and not self._is_writing:
            self.candidate.refused()
            self._step_down_if_deposed()
        elif not lease.is_lost and self.leader is not None and self.candidate.role is not CandidateRole.WATCHING:
            self.candidate.kept(lease.renewed_at)
            self.leader.renewed(lease.renewed_at)

    def _ping_all(self, now: float) -> None:
        """Ask for the leases of all subscriptions, where the network does what a connection does."""
        home = self.candidate.leader
        if home is None or now < self._ping_all_at or not self._network.is_orderly:
            return
        self._ping_all_at = now + profiles.BORROWER.ping_s
        agent = self.handler.agent
        found = [agent.borrower(number) for number in agent.subscriptions]
        speakers = [one.id for one in found if one is not None]
        self._network.call(self.name, home.id, lambda host: host.hear_of_all(self.name, speakers, now))

    def hear_of_all(self, source: str, speakers: Sequence[str], asked_at: float) -> None:
        if self.is_frozen:
            self._calls_waiting.append(lambda: self.hear_of_all(source, speakers, asked_at))
            return
        if not self.is_alive or self.leader is None:
            return
        leader = self.leader
        known = [one for one in speakers if self._homes.get(one) == source and leader.hear_of(one, self.now)]
        self._network.call(self.name, source, lambda host: host.renew_all(known, asked_at))

    def renew_all(self, known: Sequence[str], asked_at: float) -> None:
        if self.is_frozen:
            self._calls_waiting.append(lambda: self.renew_all(known, asked_at))
            return
        for one in known if self.is_alive else ():
            number = self.handler.agent.subscription_of(one)
            borrower = None if number is None else self.handler.agent.borrower(number)
            if borrower is not None:
                borrower.on_heard_of(asked_at, self.now)

    # -- writing

    def _write(self, claim: Claim, done: Callable[[Outcome], None], *, with_partitions: bool) -> None:
        self._is_writing = True
        writes: list[Write] = [(NAMES.leader, candidates.encode(claim.record), claim.expected)]
        if claim.overthrows is not None:
            writes.append((claim.overthrows[0], None, claim.overthrows[1]))
        leader = self.leader
        records, deleted = leader.changes() if leader is not None and with_partitions else ({}, set())
        writes += [
            (NAMES.partition(number), encode_partition(record, bytes_max=_RECORD_BYTES_MAX)[0], None)
            for number, record in records.items()
        ]
        writes += [(NAMES.partition(number), None, None) for number in deleted]

        def finish(outcome: Outcome) -> None:
            self._is_writing = False
            if self.is_alive:
                if outcome.versions is not None and not outcome.is_unknown and leader is not None:
                    leader.stored(records, deleted, self.now)
                done(outcome)

        self._put(writes, finish)

    def _put(self, writes: Sequence[Write], done: Callable[[Outcome], None]) -> None:
        if self.is_cut_off:
            self.world.after(self.world.between(0.01, 0.1), done, Outcome(None, is_unknown=True))
        else:
            self._store.put(writes, done)

    def _settle(self, outcome: Outcome) -> None:
        if outcome.is_unknown:
            self.candidate.unknown()
            self._look_at = self.now
        elif outcome.versions is None:
            self.candidate.refused()
        else:
            self.candidate.written(outcome.versions[0])
            if self.leader is not None:
                self.leader.renewed(self.candidate.renewed_at)
        self._step_down_if_deposed()

    # -- the consumer

    def _tell_growth(self) -> None:
        ends = tuple(len(keys) for keys in self._store.shards)
        if ends != self._told_ends:
            if self.leader is not None:
                self.leader.on_log_grown(dict(enumerate(ends)), self.now)
            for number in self.handler.idle_queues():
                self._told_ends = ends
                self.handler.on_log_grown(number, dict(enumerate(ends)))

    def _read(self) -> None:
        declaration = self._declaration()
        for loan in self.handler.loans:
            place = PartitionPlace.of(loan.partition, declaration.lanes)
            delivery = loan.delivery
            is_at_end = delivery.next_offset >= len(self._store.shards[place.shard])
            if is_at_end or not loan.wants_events or place.shard in self._store.hidden:
                continue
            start = self._store.starts[place.shard]
            if delivery.next_offset < start:
                delivery.expire(min(start, loan.until) if loan.until >= 0 else start)
            events = self._store.read(place.shard, delivery.next_offset, self.world.random.randint(1, 8))
            if loan.until >= 0:
                events = [event for event in events if event.offset < loan.until]
            if events:
                self._offer(loan, place, events)

    def _offer(self, loan: LoanState, place: PartitionPlace, events: Sequence[GroupEvent]) -> None:
        mine = [event for event in events if place.owns(event)]
        for event in mine:
            event.stream, event.grant, event.loan = loan.partition, loan.grant, loan.number
        loan.delivery.offer(mine)
        loan.delivery.skip(events[-1].offset + 1)

    def _consume(self) -> None:
        found = self.handler.next_batch(self.now, self.world.random.randint(1, 6), is_exclusive=self._is_exclusive)
        if found is None:
            return
        loan, batch = found
        if loan.delivery.is_overdue(batch[0]):
            self._oracle.parked(loan, batch[0])
            loan.delivery.parked(batch[0])
            return
        shard = PartitionPlace.of(loan.partition, self._declaration().lanes).shard
        deadly = [place for place, event in enumerate(batch) if (shard, event.offset) in self._store.poison]
        if deadly:
            self._oracle.delivered(self, loan, batch[: deadly[0] + 1])
            self.crash()
            return
        bad = [place for place in range(len(batch)) if self.world.chance(self._failing)]
        stops_at = bad[0] if bad and not self._is_exclusive and self.world.chance(0.5) else None
        self._oracle.delivered(self, loan, batch if stops_at is None else batch[: stops_at + 1])
        takes_s = self.world.between(0.0, 0.15)
        self._calls += 1
        if self.world.chance(self._hanging):
            takes_s += self.world.between(1.0, 3.0) * profiles.HANDLER_TIMEOUT_S
            self.world.after(profiles.HANDLER_TIMEOUT_S, self._give_up, self._calls, loan, batch)
        self.world.after(takes_s, self._finish_batch, self._calls, loan, batch, bad, stops_at)

    def _give_up(self, call: int, loan: LoanState, batch: list[GroupEvent]) -> None:
        """The callback hangs: everything comes again, and as there is no other thread, at other members."""
        if not self.is_alive or self.is_frozen:
            return
        self._hung.add(call)
        self.world.note(self.name, "hangs in", loan.partition)
        self._oracle.starts_again(self, loan)
        if not self._is_exclusive:
            loan.delivery.break_up(batch)
        loan.delivery.time_out_batch(batch, self.now)
        self.handler.suspend(self.now)
        self._send_out()

    def _finish_batch(
        self, call: int, loan: LoanState, batch: list[GroupEvent], bad: list[int], stops_at: int | None
    ) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self.world.after(0.1, self._finish_batch, call, loan, batch, bad, stops_at)
            return
        if call in self._hung:
            self._hung.discard(call)
            if any(loan.delivery.ack(event) for event in batch):
                raise Violation(f"L20: {self.name} acknowledged what had been taken back from it")
            if not self._hung and not self._is_leaving:
                self.handler.resume(self.now)
            return
        if self._is_exclusive:
            for place, event in enumerate(batch):
                self._settle_one(loan, event, is_bad=place in bad)
        elif not bad:
            self._oracle.acknowledged(loan, batch)
            loan.delivery.settle(batch)
        elif stops_at is None and len(batch) > 1:
            self._oracle.starts_again(self, loan)
            loan.delivery.fail_batch(batch, self.now)
        else:
            self._fail_in_the_middle(loan, batch, bad[0])
        self.handler.poll(self.now)
        self._send_out()

    def _fail_in_the_middle(self, loan: LoanState, batch: list[GroupEvent], place: int) -> None:
        """One event after the other: those behind the one that failed never reach the user."""
        loan.delivery.break_up(batch)
        for event in batch[:place]:
            self._settle_one(loan, event, is_bad=False)
        self._settle_one(loan, batch[place], is_bad=True)
        loan.delivery.put_back(batch[place + 1 :])

    def _settle_one(self, loan: LoanState, event: GroupEvent, *, is_bad: bool) -> None:
        if not is_bad:
            if loan.delivery.ack(event):
                self._oracle.acknowledged(loan, [event])
        elif not loan.delivery.fail(event, self.now):
            self._oracle.parked(loan, event)
            loan.delivery.parked(event)
