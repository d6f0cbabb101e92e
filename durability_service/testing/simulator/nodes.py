"""A service in the simulation: the core, a disk, a clock of its own, and its faults."""

from __future__ import annotations

import dataclasses

from durability_service.core.effects import (
    AcknowledgeRange,
    Event,
    Level,
    Live,
    NameTaken,
    Send,
    Stored,
    StoreSamples,
    Terminate,
    Tick,
    Trace,
)
from durability_service.core.messages import Advert
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.samples import Sample
from durability_service.core.settings import ServiceSettings
from durability_service.testing.simulator.network import Network
from durability_service.testing.simulator.oracle import Oracle
from durability_service.testing.simulator.store import StoreModel
from pubsub_api.testing.simulator.world import World

_TICK_MIN_S = 0.001
EPOCH_NS = 1_700_000_000_000_000_000
"""When the simulation begins, by a wall clock that is right."""


class SimNode:
    def __init__(
        self,
        world: World,
        network: Network,
        oracle: Oracle,
        settings: ServiceSettings,
        *,
        core_class: type[DurabilityCore],
        skew_s: float,
        disk_s: float,
        name: str = "",
        lives: int = 0,
    ) -> None:
        """``name`` is that of its host, if it is not the one that it gives itself."""
        self.name = name or settings.node
        self.was_refused = False
        """Another service had its name."""
        self.settings = settings
        self.disk = StoreModel()
        self.core: DurabilityCore | None = None
        self.lost_live = False
        self._world = world
        self._network = network
        self._oracle = oracle
        self._core_class = core_class
        self._skew_ns = int(skew_s * 1e9)
        self._disk_s = disk_s
        self._life = lives
        self._is_paused = False
        self._missed: list[Event] = []
        self._pending: list[StoreSamples] = []
        self._is_disk_busy = False
        self._tick_at = 0.0
        self._tokens: dict[int, Sample] = {}
        self._open: set[int] = set()
        self._token = 0
        network.nodes.append(self)

    @property
    def is_alive(self) -> bool:
        return self.core is not None

    @property
    def is_awake(self) -> bool:
        return self.core is not None and not self._is_paused

    @property
    def now(self) -> float:
        return self._world.now

    @property
    def is_disk_idle(self) -> bool:
        return not self._pending

    @property
    def unacknowledged(self) -> list[Sample]:
        """What reached this life of the service and was not acknowledged."""
        return [self._tokens[token] for token in sorted(self._open)]

    def wall_ns(self) -> int:
        return EPOCH_NS + int(self._world.now * 1e9) + self._skew_ns

    def set_clock(self, skew_s: float) -> None:
        self._world.note(self.name, "clock set", skew_s)
        self._skew_ns = int(skew_s * 1e9)

    def new_token(self, sample: Sample) -> int:
        self._token += 1
        self._tokens[self._token] = sample
        return self._token

    # -- life

    def start(self) -> None:
        if self.core is not None:
            return
        self._life += 1
        self.settings = dataclasses.replace(self.settings, incarnation=self._life)
        self.was_refused = False
        restored = self.disk.open()
        found = {name: sum(bucket.samples for bucket in one.buckets.values()) for name, one in restored.items()}
        self._world.note(self.name, "start", self._life, found)
        self.core = self._core_class(self.settings, restored, self._world.now, self.disk)
        self._oracle.started(self)
        self._tick_at = self._world.now  # that of the life before does not come
        self._tick(self._life)

    def crash(self) -> None:
        """Die between two operations of the disk: some of those that were under way may have been done."""
        if self.core is None:
            return
        done = self._world.random.randint(0, len(self._pending))
        self._world.note(self.name, "crash", f"{done} of {len(self._pending)} operations done")
        for store in self._pending[:done]:
            self.disk.do(store.operation)
        self._die()

    def stop(self) -> None:
        """End as a service should: say good-bye, write everything."""
        if self.core is None or self._is_paused:
            return
        self.feed(Terminate())
        self._end()

    def _end(self) -> None:
        self._world.note(self.name, "stop")
        for store in self._pending:
            self.disk.do(store.operation)
        self._die()

    def _die(self) -> None:
        self.core = None
        self._pending.clear()
        self._missed.clear()
        self._open.clear()
        self._is_paused = self._is_disk_busy = False

    def pause(self) -> None:
        if self.core is not None:
            self._world.note(self.name, "pause")
            self._is_paused = True

    def resume(self) -> None:
        if self._is_paused:
            self._world.note(self.name, "resume")
            self._oracle.resumed(self)
            self._is_paused = False
            missed, self._missed = self._missed, []
            for event in missed:
                self.feed(event)
            self._tick(self._life)

    # -- events and effects

    def feed(self, event: Event) -> None:
        core = self.core
        if core is None:
            return
        if self._is_paused:
            self._missed.append(event)
            return
        if isinstance(event, Live):
            self._open.add(event.token)
        for effect in core.step(self._world.now, self.wall_ns(), event):
            if isinstance(effect, Send):
                if isinstance(effect.message, Advert):
                    self._oracle.advertised(self, effect.message)
                self._network.broadcast(self, effect.message)
            elif isinstance(effect, StoreSamples):
                self._oracle.storing(self, effect.operation)
                self._pending.append(effect)
                self._work()
            elif isinstance(effect, AcknowledgeRange):
                self._open.discard(effect.token)
                self._oracle.acknowledged(self, self._tokens[effect.token])
            elif isinstance(effect, NameTaken):
                self.was_refused = True
            elif isinstance(effect, Trace) and effect.level <= Level.FINE:
                self._oracle.traced(self, effect.what, effect.fields)
                self._world.note(self.name, effect.what, *effect.fields.values())
        self._oracle.stepped(self)
        if self.was_refused:
            self._end()
        else:
            self._schedule()

    def _work(self) -> None:
        if self._pending and not self._is_disk_busy:
            self._is_disk_busy = True
            self._world.after(self._world.random.random() * self._disk_s, self._done, self._life, self._pending[0])

    def _done(self, life: int, store: StoreSamples) -> None:
        if life != self._life or not self._is_disk_busy:
            return
        self._is_disk_busy = False
        self._pending.pop(0)
        self.disk.do(store.operation)
        self.feed(Stored(store.number))
        self._work()

    def _schedule(self) -> None:
        assert self.core is not None
        due = max(self.core.next_deadline(), self._world.now + _TICK_MIN_S)
        if not self._world.now < self._tick_at <= due:
            self._tick_at = due
            self._world.at(due, self._tick, self._life)

    def _tick(self, life: int) -> None:
        if life == self._life and self.core is not None and not self._is_paused and self._tick_at <= self._world.now:
            self.feed(Tick())
