"""How a log learns how many shards it has, and gets more of them, whatever the store is."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config
from durable_log.core import checks
from durable_log.log_api import LogApi, ShardState
from durable_log.storage import shard_map
from durable_log.storage.shard_map import ShardMap
from pubsub_api.errors import InvalidConfig, UsageError


class GrowingLog(LogApi):
    """Implements `shards`, `shards_of`, `set_shards` and `state` over what a driver has to provide."""

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self.shard_map = ShardMap(0)
        """As it was found last; `find_shards` sets it."""

    @abc.abstractmethod
    def stored_states(self) -> list[ShardState]:
        """Every shard that the store has, in order of its number, of the same moment."""

    @abc.abstractmethod
    def add_shards(self, found: ShardMap, shards: int) -> ShardMap | None:
        """Add shards, and write the record of `durable_log.storage.shard_map` with where the others end, in one
        transaction that no append is in the middle of.  None, and nothing happens, when the store has other shards than
        were found."""

    @abc.abstractmethod
    def note_shards(self, shards: int) -> None:
        """Say, where segments are, how many shards there will be: a repair of the store needs to know."""

    @property
    def shards(self) -> int:
        return self.shard_map.shards

    def shards_of(self, topic: str) -> tuple[int, ...]:
        return self.shard_map.shards_of(topic)

    def find_shards(self, made_with: int = 0) -> None:
        """Learn how many shards there are now.  ``made_with`` is for the first time.  Raises LogUnavailable,
        LogCorrupt."""
        # Not as many as were found last: an older copy of the log may have been put in its place.  Before the record is
        # read, which comes in the same transaction as more shards.
        made_with = made_with or len(self.stored_states())
        record = self.get_record(shard_map.RECORD)
        self.shard_map = shard_map.decode(made_with, record and record.value)

    def check_wanted_shards(self) -> None:
        """Raises InvalidConfig when ``[log] shards`` is neither what the log has nor what it had before it grew."""
        wanted = self.conf[config.GROUP].shards
        if wanted is not None and wanted not in (self.shards, *self.shard_map.former):
            raise InvalidConfig(
                f"the log {self._about()} has {self.shards} shards, not {wanted} as [log] shards says. 'heliograph log "
                "set-shards' gives it more"
            )

    def state(self) -> list[ShardState]:
        found = self.stored_states()
        if len(found) != self.shards:
            self.find_shards()
        return [one._replace(after=self.shard_map.after(one.shard)) for one in found] if self.shard_map.steps else found

    def set_shards(self, shards: int) -> bool:
        checks.check_limit(shards, "shards")
        if shards > config.SHARDS_MAX:
            raise UsageError(f"a log has {config.SHARDS_MAX} shards at most, not {shards}")
        while True:
            self.find_shards()
            if shards == self.shards:
                self.note_shards(shards)  # a process that was killed may have said another number
                return False
            self.shard_map.grown(shards, ())  # raises what is wrong, before anything is changed
            self.note_shards(shards)
            grown = self.add_shards(self.shard_map, shards)
            if grown is not None:
                self.shard_map = grown
                return True
            self.find_shards()
            self.note_shards(self.shards)  # another process was faster, and perhaps not with the same number

    def check_shard(self, shard: int) -> None:
        """Raises UsageError when there is no such shard."""
        if type(shard) is int and shard >= self.shards:
            self.find_shards()
        checks.check_shard(shard, self.shards)

    def check_ends(self, ends: Mapping[int, int], timeout_s: float) -> None:
        """The same for what is handed to `wait`."""
        for shard in ends:
            self.check_shard(shard)
        checks.check_ends(ends, self.shards, timeout_s)
