"""One run: which hosts there are, what befalls them, and when it is over.

First comes a time of faults, then a quiet time after which nothing may be owed and nothing may move any more.
"""

from __future__ import annotations

import dataclasses

import msgspec

from pubsub_api.testing.simulator.world import Violation, World
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core.consuming.handler import Handler
from shared_subscriptions.core.declaration import Declaration, Wish
from shared_subscriptions.core.leading.candidate import Candidate
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.core.leading.queue import QueueLeader
from shared_subscriptions.testing.simulator import verdict
from shared_subscriptions.testing.simulator.hosts import PATIENCE_S, SimHost
from shared_subscriptions.testing.simulator.network import Network
from shared_subscriptions.testing.simulator.oracle import Oracle
from shared_subscriptions.testing.simulator.profiles import LEASE, Profile
from shared_subscriptions.testing.simulator.store import NAMES, SimStore

SLICE_S = 0.5


@dataclasses.dataclass(frozen=True)
class Cores:
    """The classes under test; tests of the simulator itself put broken ones here."""

    handler: type[Handler] = Handler
    leader: type[Leader] = Leader
    queue_leader: type[QueueLeader] = QueueLeader
    candidate: type[Candidate] = Candidate
    process_lease: type[ProcessLease] = ProcessLease


class Scenario:
    def __init__(self, world: World, profile: Profile, cores: Cores) -> None:
        self.world = world
        self.profile = profile
        self.random = world.random
        self.network = Network(world, profile)
        self.network.deliver = self._deliver
        shards = self.random.randint(*profile.shards)
        self.store = SimStore(world, shards, profile.store_failures, profile.slow_writes)
        self.oracle = Oracle(world, self.store, is_crashing_only=profile.is_crashing_only)
        self.duration_s = world.between(*profile.duration_s)
        self.cores = cores
        self._by_name: dict[str, SimHost] = {}
        self.network.host_of = self._by_name.get
        self._members = 0
        lanes = 1 if profile.is_queue else self.random.randint(1, profile.lanes)
        self._declare(Declaration("g", "#", "queue" if profile.is_queue else "shared", lanes, (0,) * shards))

    def run(self) -> None:
        """Raises Violation."""
        for _ in range(self.random.randint(*self.profile.hosts)):
            self.world.at(self.world.between(0.0, 0.2), self.join)
        for _ in range(self.random.randint(0, self.profile.servers)):
            self.world.at(self.world.between(0.0, 0.2), self._serve)
        self._plan()
        self.world.run_until(self.duration_s)
        self._restore()
        self._settle()
        if self.profile.is_faultless:
            verdict.check_no_duplicates(self)
        if self.profile.is_crashing_only:
            verdict.check_poison(self)

    def _settle(self) -> None:
        """Let time pass until nothing is owed and nothing moves any more, and no longer than that may take."""
        deadline = self.world.now + verdict.SETTLING_S + verdict.POISON_S * len(self.store.poison)
        if self.profile.is_queue:  # what is left may be handled one by one
            deadline += verdict.JOB_S * sum(len(keys) for keys in self.store.shards)
        while self.world.now < deadline:
            self.world.run_until(self.world.now + SLICE_S)
            try:
                verdict.check_settled(self)
                before = self.oracle.grants
                self.world.run_until(self.world.now + verdict.STABLE_S)
                verdict.check_stable(self, before)
                return
            except Violation as violation:
                self.world.note("verdict", "not yet:", violation)
                if self.world.now >= deadline:
                    raise

    @property
    def living(self) -> list[SimHost]:
        return [host for host in self.oracle.hosts if host.is_alive]

    # -- what happens

    def _plan(self) -> None:
        profile = self.profile
        for bounds, action in (
            (profile.bursts, self._burst),
            ((0, profile.poison), self._poison),
            ((0, profile.joins), self.join),
            ((0, profile.leaves), self._leave),
            ((0, profile.crashes), self._crash),
            ((0, profile.freezes), self._freeze),
            ((0, profile.outages), self._outage),
            ((0, profile.pauses), self._pause),
            ((0, profile.partitions), self._partition),
            ((0, profile.resubscribes), self._resubscribe),
            ((0, profile.commands), self._command),
            ((0, profile.trims), self._trim),
            ((0, profile.vanishing), self._vanish),
        ):
            for _ in range(self.random.randint(*bounds)):
                self.world.at(self.world.between(0.1, self.duration_s), action)

    def _burst(self) -> None:
        shard = self.random.randrange(len(self.store.shards))
        if shard not in self.store.hidden:
            self.store.append(shard, [f"k{self.random.randrange(4)}" for _ in range(self.random.randint(1, 8))])

    def _poison(self) -> None:
        """The next event of a shard kills the process that handles it."""
        shard = self.random.randrange(len(self.store.shards))
        self.store.poison.add((shard, len(self.store.shards[shard])))
        self.store.append(shard, [f"k{self.random.randrange(4)}" for _ in range(self.random.randint(1, 8))])

    def on_death(self, host: SimHost) -> None:
        """A process has died, and is started again."""
        self.oracle.crashed_at.append(self.world.now)
        self.world.after(self.world.between(0.05, 3.0), self.join, host.member_name)

    def join(self, member_name: str = "") -> None:
        self._start(member_name).subscribe()

    def _serve(self) -> None:
        """A process that leads when it is its turn, and is no member."""
        self._start("").is_server = True

    def _start(self, member_name: str) -> SimHost:
        self._members += 1
        host = SimHost(self, name=f"host{self._members}", member_name=member_name or f"member{self._members}")
        self.oracle.hosts.append(host)
        self._by_name[host.name] = host
        return host

    def _some_host(self) -> SimHost | None:
        living = [host for host in self.living if not host.is_frozen]
        return self.random.choice(living) if living else None

    def _leave(self) -> None:
        host = self._some_host()
        if host is not None and len(self.living) > 1:
            host.leave(patience_s=self.world.between(0.0, 1.0) if self.profile.hurry else PATIENCE_S)

    def _crash(self) -> None:
        host = self._some_host()
        if host is not None:
            host.crash()

    def _freeze(self) -> None:
        host = self._some_host()
        if host is not None:
            host.freeze()
            self.world.after(self.world.between(0.1, 4.0), host.thaw)

    def _pause(self) -> None:
        """The leader stands still until others are about to take its place, or just have."""
        for host in self.living:
            if host.leader is not None and not host.is_frozen:
                host.freeze()
                self.world.after(LEASE.claim_time_s + self.world.between(-0.1, 0.4), host.thaw)

    def _outage(self) -> None:
        """A process cannot reach the store; more often than not it is the leader."""
        leading = [host for host in self.living if host.leader is not None]
        host = leading[0] if leading and self.world.chance(0.7) else self._some_host()
        if host is not None:
            self.world.note("fault", host.name, "cannot reach the store")
            host.is_cut_off = True
            self.world.after(self.world.between(0.1, 4.0), host.reach_store)

    def _partition(self) -> None:
        if len(self.living) > 1:
            pair = frozenset(host.name for host in self.random.sample(self.living, 2))
            self.world.note("fault", "partition of", *sorted(pair))
            self.network.cut.add(pair)
            self.world.after(self.world.between(0.1, 4.0), self.network.cut.discard, pair)

    def _resubscribe(self) -> None:
        host = self._some_host()
        if host is not None and host.subscriptions:
            host.unsubscribe()
            self.world.after(self.world.between(0.0, 0.1), host.subscribe)

    def _command(self) -> None:
        """What an operator does: a wish, or a seek."""
        declaration = self.oracle.declaration
        ends = tuple(len(keys) for keys in self.store.shards)
        what = self.random.choice(("seek", "pause", "drain", "resume"))
        self.world.note("operator", what)
        if what == "seek":
            positions = tuple(self.random.randint(0, end) for end in ends)
            changed = {"generation": declaration.generation + 1, "positions": positions}
        elif what == "drain":
            changed = {"wish": Wish.DRAINING, "until": ends}
        else:
            changed = {"wish": Wish.PAUSED if what == "pause" else Wish.ACTIVE}
        self._declare(msgspec.structs.replace(declaration, **changed))

    def _declare(self, declaration: Declaration) -> None:
        self.store._write(NAMES.group, declarations.encode(declaration))

    def _trim(self) -> None:
        shard = self.random.randrange(len(self.store.shards))
        start = self.random.randint(self.store.starts[shard], len(self.store.shards[shard]))
        self.world.note("log", "trims", shard, "to", start)
        self.store.starts[shard] = start

    def _vanish(self) -> None:
        shard = self.random.randrange(len(self.store.shards))
        self.world.note("log", "drops", shard)
        self.store.hidden.add(shard)

    def _deliver(self, source: str, target: str, message: object) -> None:
        host = self._by_name.get(target)
        if host is not None:
            host.on_arrival(source, message)  # type: ignore[arg-type]  # the network decoded it

    def _restore(self) -> None:
        """No more faults, and at least one member."""
        self.world.note("fault", "no more")
        self.network.heal()
        self.store.failure = self.store.slowness = 0.0
        self._declare(msgspec.structs.replace(self.oracle.declaration, wish=Wish.ACTIVE))
        for host in self.living:
            host.thaw()
            host.reach_store()
            host.program.stop_failing()
        if not any(host.subscriptions for host in self.living):
            self.join()
