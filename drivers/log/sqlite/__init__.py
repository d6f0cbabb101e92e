"""A log in one SQLite file, for the processes of one host.

SQLite lets one transaction write at a time, across processes.  Offsets and the positions of streams are read and
written inside of it, so offsets are dense and a frame is stored once, whichever process appends.  Threads of one
process share transactions.

There is no notification between processes: `wait` looks, more and more seldom, and is woken at once by its own process.
It looks at the files first, and asks SQLite only when they may have changed (`watching`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config
from durable_log.core.checks import Write
from durable_log.core.fence import Fence
from durable_log.errors import LogCorrupt
from durable_log.log_api import Record, ShardState, StoredFrame
from durable_log.storage.frame_rows import Batch
from durable_log.storage.identity import Lineage
from durable_log.storage.row_log import RowLog, StoredRows
from durable_log.storage.segmented import HotRead, RestoredShard
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.log.sqlite import appending, reading, records, schema, sealed
from heliograph_drivers.log.sqlite.store import SqliteLogFile
from heliograph_drivers.log.sqlite.watching import FileWatch
from heliograph_drivers.sqlite_common.files import path_of
from pubsub_api.errors import Closed, InvalidConfig
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.options import MIB, advanced

GROUP = "log_sqlite"

_EMPTY_BYTES = 1 << 20
"""What the file of a log without frames may take, with records and streams.  No retention can make it smaller."""

OPTIONS: Sequence[cfg.Opt] = advanced(
    cfg.StrOpt("synchronous", default="full", choices=["full", "normal"],
               help="full: what was appended is on disk when append returns. normal: a power failure may take back the "
                    "last appends. A process that is killed loses nothing either way."),
)  # fmt: skip

_POLL_INTERVAL_S = 0.001
_POLL_INTERVAL_MAX_S = 0.02
"""How soon, and how seldom at most, a wait looks for appends of other processes; each vain look doubles it."""
_QUIET_S = 5.0
_POLL_INTERVAL_QUIET_S = 0.04
"""How seldom it looks when nothing was appended for so long: looking is nearly all that an idle log costs."""
_JOURNAL_BYTES_MAX = 64 * MIB
"""A write-ahead log that has grown beyond this is cut when it is recycled."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


class SqliteLog(RowLog):
    """``sqlite:///path/log.db``; sealed segments are in ``/path/log.db-segments``."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        path = path_of(url)
        self._grown_at = time.monotonic()  # when a wait last found something new
        self.default_directory = path.with_name(f"{path.name}-segments")
        self._store = SqliteLogFile(
            path,
            f"PRAGMA synchronous = {conf[GROUP].synchronous}; "
            f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_MAX}; PRAGMA temp_store = memory;",
            operation_timeout_s=conf[config.GROUP].operation_timeout,
        )

    def exists(self) -> bool:
        """An empty file is none: what makes it a log would be written into it."""
        path = self._store.path
        return path.exists() and path.stat().st_size > 0

    def connect(self) -> None:
        store = self._store
        store.make_file()
        store.identity = ""
        try:
            self._found = store.run(lambda connection: schema.make_schema(connection, store.path, self.new_shards))
        except LogCorrupt as error:
            raise InvalidConfig(f"{store.path} cannot be used as a log: {error}") from error
        store.identity = self.identity
        self.find_shards(self._found.shards)

    def check_open(self) -> None:
        self._store.check_open()

    def close(self) -> None:
        self._store.close()

    # -- frames

    def append_rows(self, batch: Batch, shards: int) -> StoredRows | None:
        return self._store.write(lambda connection: appending.append(connection, batch, shards, time.time_ns()))

    def note_heads(self, heads: Sequence[tuple[bytes, str, int]], shards: int) -> bool:
        return self._store.write(lambda connection: appending.note_missing(connection, heads, shards, time.time_ns()))

    def stored_states(self) -> list[ShardState]:
        return self._store.run(reading.states)

    def wait(self, ends: Mapping[int, int], *, timeout_s: float) -> bool:
        self.check_ends(ends, timeout_s)
        self._store.check_open()
        deadline = time.monotonic() + timeout_s
        watch = FileWatch(self._store.path)
        # More is likely soon after an append.  Where nothing came for long, it looks seldom from the beginning.
        quiet_s = time.monotonic() - self._grown_at
        seldom_s = _POLL_INTERVAL_QUIET_S if quiet_s > _QUIET_S else _POLL_INTERVAL_MAX_S
        backoff = Backoff(max(_POLL_INTERVAL_S, min(quiet_s, seldom_s)), seldom_s)
        while True:
            commits = self._store.commits
            rest = deadline - time.monotonic()
            try:
                self._store.check_open()
                # At the end SQLite is asked in any case, so that False is certain.
                if (watch.may_have_news(commits) or rest <= 0) and self._store.run(
                    lambda connection: reading.has_grown(connection, ends)
                ):
                    self._grown_at = time.monotonic()
                    return True
            except Closed:
                return False
            if rest <= 0:
                return False
            self._store.pause(commits, min(rest, backoff.next_s()))

    # -- records

    def read_record(self, name: str) -> Record | None:
        return self._store.run(lambda connection: records.get(connection, name))

    def write_records(self, writes: Sequence[Write]) -> list[int]:
        return self._store.write(lambda connection: records.put(connection, writes))

    def list_records(self, prefix: str) -> list[Record]:
        return self._store.run(lambda connection: records.starting_with(connection, prefix))

    # -- what the sealed part builds on

    def add_shards(self, found: ShardMap, shards: int) -> ShardMap | None:
        return self._store.write(lambda connection: schema.add_shards(connection, found, shards))

    def hot_read(self, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
        return self._store.read(
            lambda connection: reading.read(connection, shard, offset, events_max=events_max, bytes_max=bytes_max)
        )

    def hot_read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int) -> list[StoredFrame]:
        return self._store.run(
            lambda connection: reading.read_stream(connection, guid, topic, first, last, bytes_max=bytes_max)
        )

    def hot_find(self, shard: int, appended_ns: int) -> int:
        return self._store.read(lambda connection: reading.find(connection, shard, appended_ns))

    def positions(self, shard: int) -> list[tuple[bytes, bytes]]:
        return self._store.run(lambda connection: reading.positions(connection, shard))

    def stored_end(self, shard: int) -> int:
        return self._store.run(lambda connection: reading.stored_end(connection, shard))

    def manifest(self, shard: int | None) -> list[str]:
        return self._store.run(lambda connection: sealed.manifest(connection, shard))

    def add_segment(self, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
        return self._store.write(lambda connection: sealed.add(connection, shard, first, end, entry, fence))

    def replace_segments(
        self, shard: int, span: tuple[int, int], old: Sequence[str], entry: str, fence: Fence | None
    ) -> bool:
        return self._store.write(lambda connection: sealed.replace(connection, shard, span, old, entry, fence))

    def forget_streams(self, before_ns: int) -> int:
        return self._store.write(lambda connection: sealed.forget_streams(connection, before_ns))

    def drop(self, shard: int, start: int, sealed_end: int) -> bool:
        return self._store.write(lambda connection: sealed.drop(connection, shard, start, sealed_end))

    def restore(self, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
        self._store.write(lambda connection: sealed.restore(connection, lineage, shards))
        self._found = self._found._replace(lineage=lineage)
        self._store.identity = lineage.identity

    def directory_token(self) -> str:
        return self._store.run(sealed.directory_token)

    def set_directory_token(self, token: str, fence: Fence | None) -> None:
        self._store.write(lambda connection: sealed.set_directory_token(connection, token, fence))

    def unsealed_bytes(self) -> int:
        return max(super().unsealed_bytes(), self._store.run(schema.used_bytes) - _EMPTY_BYTES)

    def release(self) -> None:
        while self._store.run(schema.release):
            pass

    def check_store(self) -> list[str]:
        try:
            return self._store.run(schema.check)
        except LogCorrupt as error:
            return [str(error)]
