"""A process of the simulation: its clock, its messages and what befalls it.

It does what the real ones do (`shared_subscriptions.consuming.subscriber`, `shared_subscriptions.leading.group`) with
the same cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shared_subscriptions.core import messages as m
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.testing.simulator import profiles
from shared_subscriptions.testing.simulator.leading import SimLeading
from shared_subscriptions.testing.simulator.programs import SimProgram

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.scenario import Scenario

TICK_S = 0.025
PATIENCE_S = 3.0
"""How long a process that leaves waits for what it has to give or get back."""


class SimHost:
    """One life of a process.  ``name`` is its address, and never used again."""

    def __init__(self, scenario: Scenario, *, name: str, member_name: str) -> None:
        world = self.world = scenario.world
        self.name = name
        self.member_name = member_name
        self.is_alive = True
        self.is_frozen = False
        self.is_cut_off = False
        """It cannot reach the store."""
        self.is_server = False
        """It may lead without being a member."""
        self.is_leaving = False
        self.subscriptions: list[int] = []
        """Those that are wanted."""
        self._rate = 1.0 + scenario.profile.clock_drift * world.between(-1.0, 1.0)
        is_exclusive = world.chance(0.5)
        self._start = world.between(0.0, 1000.0)
        self._network, self._store, self._oracle = scenario.network, scenario.store, scenario.oracle
        self._on_death = scenario.on_death
        self._told_ends: tuple[int, ...] = ()
        self._serial = 0
        self._inbox: list[tuple[str, m.Message]] = []
        self._calls_waiting: list[Callable[[], None]] = []
        """What came on connections while it stood still, apart from messages."""
        self.homes: dict[str, str] = {}
        """Borrower -> the host that it was heard from."""
        self._ping_all_at = 0.0
        self.handler = scenario.cores.handler(
            profiles.BORROWER,
            profiles.DELIVERY,
            self._new_id,
            name=member_name,
            progress_interval_s=profiles.PROGRESS_S,
        )
        self.leading = SimLeading(self, self._store, self._oracle, scenario.cores)
        self.program = SimProgram(self, self._store, self._oracle, scenario.profile, is_exclusive=is_exclusive)
        self._tick()

    @property
    def leader(self) -> Leader | None:
        return self.leading.leader

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
            self.leading.watch(now)
            self._tell_growth()
        self.handler.poll(now)
        if not self.is_cut_off:
            self.program.read()
        self.program.consume()
        if not self.is_alive:
            return
        self.leading.lead(now)
        self._oracle.check_single_leader()
        self.send_out()
        self._ping_all(now)

    def _take_inbox(self) -> list[tuple[str, m.Message]]:
        inbox, self._inbox = self._inbox, []
        return inbox

    # -- what befalls it

    def crash(self) -> None:
        if self.is_alive:
            self.world.note(self.name, "crashes")
            self.is_alive = False
            self.leading.leader = None
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
        is enough for that, and otherwise names their owners."""
        if not self.is_alive or self.is_frozen or self.is_leaving:
            return
        self.world.note(self.name, "leaves")
        self.is_leaving = True
        while self.subscriptions:
            self.unsubscribe()
        self._go_when_done(self.world.now + PATIENCE_S, self.world.now + patience_s)

    def _go_when_done(self, deadline: float, resign_by: float) -> None:
        if not self.is_alive:
            return
        is_late = self.world.now >= deadline
        if self.is_frozen or self.leading.is_writing or (self.handler.agent.subscriptions and not is_late):
            self.world.after(0.02, self._go_when_done, deadline, resign_by)
        elif self.leader is None:
            self._gone()
        elif self.leader.holders() and self.world.now < resign_by:
            self.leader.retire(self.now)
            self.world.after(0.02, self._go_when_done, deadline, resign_by)
        else:
            leases = tuple(self.leader.holders())
            self.leading.write(
                self.leading.candidate.resignation(leases, self.now),
                lambda _outcome: self._gone(),
                with_partitions=True,
            )
            self.leader.fall_silent("the leader resigned", is_final=False)
            self.send_out()

    def _gone(self) -> None:
        self.is_alive = False
        self.leading.leader = None

    # -- subscriptions

    def subscribe(self) -> None:
        if self.is_alive:
            self._serial += 1
            self.subscriptions.append(self._serial)
            self.world.note(self.name, "subscribes as", self._serial)
            self.handler.subscribe(self._serial, is_ordered=self._store.declaration().mode == "shared", now=self.now)
            self.send_out()

    def unsubscribe(self) -> None:
        if self.is_alive and not self.is_frozen and self.subscriptions:
            subscription = self.subscriptions.pop()
            self.world.note(self.name, "unsubscribes", subscription)
            if subscription in self.handler.subscriptions:
                self.handler.unsubscribe(subscription, self.now)
            self.send_out()

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
                self.send_out()

    def _receive(self, source: str, message: m.Message) -> None:
        if isinstance(message, m.TO_LEADER):
            self.homes[message.borrower] = source
            if self.leader is not None:
                self._oracle.leader_hears(self, self.leader, message)
        else:
            for subscription in self.handler.agent.subscriptions:
                self.handler.on_message(subscription, message, self.now)
            self._oracle.check_single_delivery()

    def send_out(self) -> None:
        home = self.leading.candidate.leader
        for _, message in self.handler.take_messages(self.now):
            self._oracle.borrower_says(message)
            if home is not None:
                self._network.send(self.name, home.id, message)
        if self.leader is not None:
            for answer in self.leader.take_messages():
                self._oracle.leader_says(self.leader, answer)
                if answer.borrower in self.homes:
                    self._network.send(self.name, self.homes[answer.borrower], answer)

    def _ping_all(self, now: float) -> None:
        """Ask for the leases of all subscriptions, where the network does what a connection does."""
        home = self.leading.candidate.leader
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
        known = [one for one in speakers if self.homes.get(one) == source and leader.hear_of(one, self.now)]
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

    def _tell_growth(self) -> None:
        ends = tuple(len(keys) for keys in self._store.shards)
        if ends != self._told_ends:
            if self.leader is not None:
                self.leader.on_log_grown(dict(enumerate(ends)), self.now)
            for number in self.handler.idle_queues():
                self._told_ends = ends
                self.handler.on_log_grown(number, dict(enumerate(ends)))
