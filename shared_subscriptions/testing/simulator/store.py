"""The log as a group sees it: events in shards, and records by compare-and-set that sometimes cannot be written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pubsub_api.core.events import GroupEvent
from pubsub_api.testing.simulator.world import World
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.names import Names

NAMES = Names("g")

_decode_declaration = functools.lru_cache(declarations.decode)


class Stored(NamedTuple):
    value: bytes
    version: int


class Outcome(NamedTuple):
    """What a writer learns: versions, a conflict (None), or nothing (``is_unknown``)."""

    versions: list[int] | None
    is_unknown: bool = False


Write = tuple[str, bytes | None, int | None]


class SimStore:
    """Reads are instant, writes take a moment, and with ``failure`` a writer does not learn what became of one."""

    def __init__(self, world: World, shards: int, failure: float, slowness: float = 0.0) -> None:
        self.world = world
        self.failure = failure
        self.slowness = slowness
        """Share of writes that take long."""
        self.shards: list[list[str]] = [[] for _ in range(shards)]
        """The key of each event, by offset."""
        self.starts = [0] * shards
        self.hidden: set[int] = set()
        """Shards that retention has dropped altogether."""
        self.poison: set[tuple[int, int]] = set()
        """Shard and offset of events that kill the process that handles them."""
        self.records: dict[str, Stored] = {}
        self.on_commit: Callable[[Sequence[Write]], None] = lambda _writes: None
        self._version = 0

    def declaration(self) -> Declaration:
        """That of the only group."""
        return _decode_declaration(self.records[NAMES.group].value)

    def append(self, shard: int, keys: Sequence[str]) -> None:
        self.shards[shard] += keys
        self.world.note("log", "appends to", shard, *keys)

    def read(self, shard: int, offset: int, limit: int) -> list[GroupEvent]:
        keys = self.shards[shard][offset : offset + limit]
        return [
            GroupEvent(topic=f"t{shard}", table="", key=key, action="set", offset=place)
            for place, key in enumerate(keys, offset)
        ]

    def put(self, writes: Sequence[Write], done: Callable[[Outcome], None]) -> None:
        """Write all or nothing, later; ``done`` is told what came of it, later still."""
        happens, is_told = True, True
        if self.world.chance(self.failure):
            happens, is_told = self.world.chance(0.5), False
        takes_s = self.world.between(0.001, 0.02)
        if self.slowness and self.world.chance(self.slowness):
            takes_s = self.world.between(0.02, 0.5)
        self.world.after(takes_s, self._apply, list(writes), done, happens, is_told)

    def _apply(self, writes: list[Write], done: Callable[[Outcome], None], happens: bool, is_told: bool) -> None:
        outcome = Outcome(None, is_unknown=not is_told)
        if happens and all(self._matches(name, expected) for name, _, expected in writes):
            versions = [self._write(name, value) for name, value, _ in writes]
            self.on_commit(writes)
            outcome = outcome._replace(versions=versions)
        self.world.after(self.world.between(0.001, 0.02 if is_told else 0.5), done, outcome)

    def _matches(self, name: str, expected: int | None) -> bool:
        return expected is None or expected == (self.records[name].version if name in self.records else 0)

    def _write(self, name: str, value: bytes | None) -> int:
        self._version += 1
        if value is None:
            self.records.pop(name, None)
        else:
            self.records[name] = Stored(value, self._version)
        return self._version
