"""A log in PostgreSQL, 11 or later, for several hosts; through psycopg 3.

An append locks the rows of its shards, numbers its events from their ends on and commits (`store`); so offsets are
dense and in the order of commits, and different shards do not wait for each other.  The clock is the server's.

What was appended is as durable as the server makes its commits: on its disk, and on its standbys when
``synchronous_standby_names`` and ``synchronous_commit`` say so.  ``synchronous_commit = off`` is overruled, and told,
as ``fsync = off`` is.  When the answer to a commit is lost, whether it happened is not known, and the same frames may
be appended again: the log knows where each stream stands.

A blocked `wait` listens for NOTIFY, and looks by itself now and then, because a notification is sent beside the commit
and not in it.
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
from durable_log.log_api import Record, ShardState, StoredFrame
from durable_log.storage.frame_rows import Batch
from durable_log.storage.identity import Lineage
from durable_log.storage.row_log import RowLog, StoredRows
from durable_log.storage.segmented import HotRead, RestoredShard
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.db.handles import IDLE_MAX, HandleLimits
from heliograph_drivers.log.postgres import appending, reading, records, sealed
from heliograph_drivers.log.postgres.store import NOW_NS, PostgresLogStore, Statement
from heliograph_drivers.postgres_common.settings import PostgresSettings, parse_address
from pubsub_api.errors import Closed

_DEFAULT_SCHEMA = "heliograph_log"
_CONNECT_TIMEOUT_S = 5.0
"""How long an attempt to reach the server may take."""
_CONNECTIONS_MAX = 64
"""Connections of a process.  Each thread that waits for more events holds one."""
_WAIT_SLICE_S = 0.25
"""A blocked wait looks this often by itself."""

_ENDS = 'SELECT (SELECT identity FROM @log), shard, "end" FROM @shards'
_SETTINGS = """SELECT name, reset_val FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND reset_val = 'off' ORDER BY name"""
_RISKS = {
    "fsync": "a crash of its host loses what was appended, or the whole log: set fsync = on",
    "full_page_writes": "a crash of its host may damage what was appended: set full_page_writes = on",
    "synchronous_commit": "the log overrules that for its own commits; set it to on, or to what your standbys need",
}


class PostgresLog(RowLog):
    """``postgresql://[user:password@]host[:port][,host...]/database?schema=name``, and what libpq knows besides."""

    url_words: ClassVar[frozenset[str]] = frozenset({
        "schema", "host", "port", "user", "password", "passfile", "service", "target_session_attrs",
        "load_balance_hosts", "application_name", "options", "sslmode", "sslrootcert", "sslcert", "sslkey",
        "sslpassword", "sslcrl", "sslcrldir", "sslnegotiation", "channel_binding", "require_auth", "gssencmode",
        "krbsrvname", "tcp_user_timeout",
    })  # fmt: skip

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        timeout_s: float = conf[config.GROUP].operation_timeout
        self._store = PostgresLogStore(
            PostgresSettings(
                *parse_address(url, default_schema=_DEFAULT_SCHEMA),
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                operation_timeout_s=timeout_s,
                idle_timeout_s=timeout_s,  # a process that stands still has the lock of its shards meanwhile
                limits=HandleLimits(_CONNECTIONS_MAX, IDLE_MAX, timeout_s),
            )
        )

    def exists(self) -> bool:
        return self._store.exists()

    def connect(self) -> None:
        found = self._found = self._store.install(self.new_shards)
        self.find_shards(found.shards)

    def check_settings(self) -> list[str]:
        [rows] = self._store.read(Statement(_SETTINGS))
        return [f"{self._store.address} has {name} = off: {_RISKS[name]}" for name, _ in rows]

    def check_open(self) -> None:
        self._store.check_open()

    def close(self) -> None:
        self._store.close()

    # -- frames

    def append_rows(self, batch: Batch, shards: int) -> StoredRows | None:
        return appending.append(self._store, batch, shards)

    def note_heads(self, heads: Sequence[tuple[bytes, str, int]], shards: int) -> bool:
        return appending.note_missing(self._store, heads, shards)

    def stored_states(self) -> list[ShardState]:
        return reading.states(self._store)

    def now_ns(self) -> int:
        [[(now_ns,)]] = self._store.read(Statement(f"SELECT {NOW_NS}"))
        return int(now_ns)

    def wait(self, ends: Mapping[int, int], *, timeout_s: float) -> bool:
        self.check_ends(ends, timeout_s)
        self._store.check_open()
        try:
            return self._wait(ends, time.monotonic() + timeout_s)
        except Closed:
            return False

    def _wait(self, ends: Mapping[int, int], deadline: float) -> bool:
        if any(one.end > ends[one.shard] for one in self.state() if one.shard in ends):
            return True
        with self._store.listening() as connection:
            while True:
                # Read after LISTEN has taken effect, so no news falls between the two.
                connection.was_notified = False
                found = self._store.ask(connection, Statement(_ENDS))
                if any(end > ends[shard] for shard, end in found if shard in ends):
                    return True
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                connection.await_notification(min(rest, _WAIT_SLICE_S))

    # -- records

    def read_record(self, name: str) -> Record | None:
        return records.get(self._store, name)

    def write_records(self, writes: Sequence[Write]) -> list[int]:
        return records.put(self._store, writes)

    def list_records(self, prefix: str) -> list[Record]:
        return records.starting_with(self._store, prefix)

    # -- what the sealed part builds on

    def add_shards(self, found: ShardMap, shards: int) -> ShardMap | None:
        return sealed.add_shards(self._store, found, shards)

    def hot_read(self, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
        return reading.read(self._store, shard, offset, events_max=events_max, bytes_max=bytes_max)

    def hot_read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int) -> list[StoredFrame]:
        return reading.read_stream(self._store, guid, topic, first, last, bytes_max=bytes_max)

    def hot_find(self, shard: int, appended_ns: int) -> int:
        return reading.find(self._store, shard, appended_ns)

    def positions(self, shard: int) -> list[tuple[bytes, bytes]]:
        return reading.positions(self._store, shard)

    def stored_end(self, shard: int) -> int:
        return reading.stored_end(self._store, shard)

    def manifest(self, shard: int | None) -> list[str]:
        return sealed.manifest(self._store, shard)

    def add_segment(self, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
        return sealed.add(self._store, shard, first, end, entry, fence)

    def replace_segments(
        self, shard: int, span: tuple[int, int], old: Sequence[str], entry: str, fence: Fence | None
    ) -> bool:
        return sealed.replace(self._store, shard, span, old, entry, fence)

    def drop(self, shard: int, start: int, sealed_end: int) -> bool:
        return sealed.drop(self._store, shard, start, sealed_end)

    def forget_streams(self, before_ns: int) -> int:
        shards = range(self.shards)
        return sum(
            sealed.forget_streams(self._store, shard, before_ns, locked=shards if self.shard_map.steps else [shard])
            for shard in shards
        )

    def restore(self, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
        sealed.restore(self._store, lineage, shards)
        self._found = self._found._replace(lineage=lineage)

    def directory_token(self) -> str:
        return sealed.directory_token(self._store)

    def set_directory_token(self, token: str, fence: Fence | None) -> None:
        sealed.set_directory_token(self._store, token, fence)
