"""Objects and their feed in one Redis server, 6.2 or later, through scripts that run inside of it.

Redis carries out one script at a time, alone and whole, so a transaction is one script (`scripts`): it looks at the
objects, counts the revision, writes objects, feed and outbox.  The feed is a stream whose entries are identified by
their revisions, and `wait` is a blocking read of it.  `keys` lists what is stored, `snapshot` tells how a snapshot is
taken of a store that has none.

What a Redis forgets.  With ``appendfsync always`` what was answered is on disk.  With ``everysec``, the usual choice, a
server that is killed, or whose machine fails, loses up to two seconds; a replica that takes over lacks what had not
reached it; without an append-only file everything since the last dump is gone.  Then the feed *goes back*, and
revisions that were seen never happened.  That is always told:

- A revision is the server's clock in microseconds at its commit, or one more than the last.  That is above all that was
  given before, because there are fewer writes than microseconds, also when the store has lost what was given: by a
  restart, by a replica that takes over, by keys that were put back into a running server.
- Every write names the process of the server that it was sent to (``run_id``, asked for when a connection is opened).
  Where the clock was set back, the first write to another process than wrote last begins 2**32 above what is known.  So
  no revision is ever given twice, unless the clock was set back and an old copy was restored as well.
- A revision that the feed does not have was lost: `changes` and `wait` raise RevisionUnknown for it, not only until the
  database has come so far again.

Not supported: Redis Cluster, and an eviction policy that may drop keys without an expiry (``allkeys-*``), which is
refused.  There is no index by topic: a snapshot reads all objects of its tables.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.redis import config, scripts
from heliograph_drivers.db.redis.keys import OutboxEntry, RedisKeys, name_of, read_entry, read_record
from heliograph_drivers.db.redis.link import Command, Links, Script
from heliograph_drivers.db.redis.snapshot import RedisSnapshot
from nb_api.core import checks
from nb_api.core.writes import CheckedWrite, not_found, refusal_error
from nb_api.db_api import Action, Change, DbApi, DbObject, Snapshot, ToldReport, Written
from nb_api.revisions import HistoryCheck, judge
from nb_api.writing.outbox_age import OutboxAge
from pubsub_api.errors import Closed, InvalidConfig

LOG = logging.getLogger(__name__)

_VERSION_MIN = (6, 2)
_PORTION = 500
"""What one command or script removes or reads, so that others are not kept waiting."""
_AGE_S_MAX = 3e9
"""More than any clock has seen."""


class RedisDb(DbApi):
    """The driver.  See the module's description."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {config.GROUP: config.OPTIONS}
    uses_tls = True

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._settings = config.read_settings(conf, url)
        self._keys = RedisKeys(self._settings.prefix)
        self._links = Links(self._settings)
        self._age = OutboxAge()

    def initialize(self) -> None:
        with self._links.link() as link:
            server, memory, persistence = link.server, link.info("memory"), link.info("persistence")
        address = self._settings.address
        version = server["redis_version"]
        if tuple(map(int, version.split(".")[:2])) < _VERSION_MIN:
            raise InvalidConfig(f"{address} is Redis {version}; Heliograph needs 6.2 or later")
        if server.get("redis_mode") == "cluster":
            raise InvalidConfig(f"{address} is part of a Redis Cluster; a database needs a server of its own")
        policy = memory.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise InvalidConfig(f"{address} drops keys when memory is short (maxmemory-policy {policy}): noeviction")
        if persistence.get("aof_enabled") != "1":
            LOG.warning("%s keeps no append-only file: what it holds is lost with the process", address)

    def close(self) -> None:
        self._links.close()

    def release_idle(self) -> None:
        self._links.close_idle()

    # -- objects

    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        keys = self._keys
        arguments: list[bytes | str | int] = []
        for write in writes:
            expected = "" if write.expected_version is None else write.expected_version
            name = name_of(write.table, write.key)
            arguments += (
                write.action, name, write.topic or "", write.value or b"", expected, int(write.with_outbox),
                int(write.if_changed),
            )  # fmt: skip
        with self._links.link() as link:
            outcome, *found = link.run_script(
                scripts.COMMIT,
                (keys.state, keys.objects, keys.names, keys.deleted, keys.deletions, keys.feed, keys.outbox,
                 keys.snapshots, keys.undo),
                (link.run, *arguments),
            )  # fmt: skip
        if outcome == b"done":
            return [_written(*found[start : start + 4]) for start in range(0, len(found), 4)]
        position, version = found[0] - 1, found[1] if len(found) > 1 else None
        raise refusal_error(writes, position, outcome.decode(), None if version is None else int(version))

    def get(self, table: str, key: str) -> DbObject:
        checks.check_object(table, key)
        name = name_of(table, key)
        record, deleted = self._links.transaction(
            ("HGET", self._keys.objects, name), ("HGET", self._keys.deleted, name)
        )
        if record is None:
            raise not_found(table, key, None if deleted is None else int(deleted))
        version, topic, value = read_record(record)
        return DbObject(table, key, topic, checks.decode_value(value), version)

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> Snapshot:
        selection = checks.TopicSelection(tables, topics, buckets)
        return RedisSnapshot(self._links, self._keys, self._settings, selection)

    def allocate(self, name: str) -> int:
        checks.check_name(name, "counter")
        return int(self._links.call("HINCRBY", self._keys.counters, name, 1))

    # -- changes

    def revision(self) -> int:
        return int(self._links.call("HGET", self._keys.state, "revision") or 0)

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        checks.check_revision(after_revision)
        checks.check_limit(limit)
        entries = self._look(after_revision, ("XRANGE", self._keys.feed, after_revision + 1, "+", "COUNT", limit))
        return [entry.change for entry in entries]

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        checks.check_revisions(revisions)
        wanted = sorted(set(revisions))
        portions = [wanted[start : start + _PORTION] for start in range(0, len(wanted), _PORTION)]
        return [entry.change for portion in portions for entry in self._entries(portion)[1]]

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        checks.check_revisions(revisions)
        found = self._links.run_script(scripts.LOOK_UP, (self._keys.state, self._keys.feed), *revisions)
        newest, compacted, *known = map(int, found)
        return judge(revisions, set(known), compacted=compacted, newest=newest)

    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        checks.check_revision(after_revision)
        checks.check_not_negative(timeout_s, "timeout_s")
        deadline = time.monotonic() + timeout_s
        self._links.check_open()
        try:
            while True:
                if self._look(after_revision, ("XRANGE", self._keys.feed, after_revision + 1, "+", "COUNT", 1)):
                    return True
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._block(after_revision, remaining_s)
        except Closed:
            return False

    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        checks.check_revision(keep_changes, "number of changes to keep")
        checks.check_not_negative(keep_tombstones_s, "keep_tombstones_s")
        keys = self._keys
        self._repeat(scripts.BURY, (keys.deleted, keys.deletions), min(float(keep_tombstones_s), _AGE_S_MAX))
        return self._repeat(scripts.TRIM, (keys.state, keys.feed, keys.outbox, keys.kept), keep_changes)

    # -- outbox

    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        checks.check_not_negative(older_than_s, "older_than_s")
        checks.check_limit(limit)
        began = time.monotonic()
        waiting = self._links.call("ZRANGEBYSCORE", self._keys.outbox, f"({after_revision}", "+inf", "LIMIT", 0, limit)
        old = self._age.old_up_to(older_than_s, began)
        self._age.looked(older_than_s, began, int(waiting[-1]) if waiting else after_revision)
        changes: list[Change] = []
        for start in range(0, len(waiting), _PORTION):
            now, entries = self._entries(waiting[start : start + _PORTION])
            # Without an age no clock is asked, so that one that was set back hides nothing.
            changes += [
                entry.change
                for entry in entries
                if not older_than_s or entry.time <= now - older_than_s or entry.change.revision <= old
            ]
        return changes

    def mark_published(self, revisions: Sequence[int]) -> None:
        checks.check_revisions(revisions)
        self._links.check_open()
        for start in range(0, len(revisions), _PORTION):
            portion = revisions[start : start + _PORTION]
            self._links.transaction(
                ("ZREM", self._keys.outbox, *portion),
                ("XDEL", self._keys.kept, *(f"{revision}-0" for revision in portion)),
            )

    # -- reports

    def tell_report(self, name: str, data: bytes) -> ToldReport:
        checks.check_report(name, data)
        key = self._keys.reports
        before, _, count = self._links.transaction(("HGET", key, name), ("HSET", key, name, data), ("HLEN", key))
        return ToldReport(before, int(count))

    def reports(self) -> dict[str, bytes]:
        found = iter(self._links.call("HGETALL", self._keys.reports))
        return {name.decode(): data for name, data in zip(found, found, strict=True)}

    def forget_reports(self, names: Sequence[str]) -> None:
        self._links.check_open()
        for start in range(0, len(names), _PORTION):
            self._links.call("HDEL", self._keys.reports, *names[start : start + _PORTION])

    # -- inside

    def _look(self, after_revision: int, query: Command) -> list[OutboxEntry]:
        """What the query of the feed finds.  Raises RevisionTooOld, RevisionUnknown."""
        state, known, found = self._links.transaction(
            ("HMGET", self._keys.state, "revision", "compacted"),
            ("XRANGE", self._keys.feed, after_revision, after_revision),
            query,
        )
        newest, compacted = (int(number or 0) for number in state)
        checks.check_in_feed(after_revision, compacted=compacted, newest=newest, is_known=bool(known))
        return [read_entry(*entry) for entry in found]

    def _block(self, after_revision: int, timeout_s: float) -> None:
        """Return when the feed has grown, and at the latest when the server should be asked how it is."""
        seconds = min(timeout_s, self._settings.operation_timeout_s)
        with self._links.link() as link:
            link.call(
                "XREAD", "COUNT", 1, "BLOCK", math.ceil(seconds * 1000), "STREAMS", self._keys.feed, after_revision,
                patience_s=seconds,
            )  # fmt: skip

    def _repeat(self, script: Script, keys: tuple[bytes, ...], bound: float) -> int:
        total, removed = 0, _PORTION
        while removed == _PORTION:
            removed = int(self._links.run_script(script, keys, bound, _PORTION))
            total += removed
        return total

    def _entries(self, revisions: Sequence[bytes | int]) -> tuple[float, list[OutboxEntry]]:
        """The server's clock, and the changes of these revisions that are there, wherever they are."""
        places = (self._keys.feed, self._keys.kept)
        queries: list[tuple[Any, ...]] = [
            ("XRANGE", place, revision, revision) for revision in revisions for place in places
        ]
        (seconds, micros), *found = self._links.transaction(("TIME",), *queries)
        entries = [read_entry(*entry) for part in found for entry in part]
        return int(seconds) + int(micros) / 1e6, entries


def _written(version: bytes, action: bytes, topic: bytes, left_topic: bytes) -> Written:
    kind: Action | None = action.decode() or None  # type: ignore[assignment]  # only our script says it
    return Written(int(version), kind, topic.decode(), left_topic.decode() or None)
