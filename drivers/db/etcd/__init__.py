"""Objects and their feed in etcd, 3.4 or later.

etcd counts its transactions: the number is given at commit, in the order of commits, and every key keeps the number of
the transaction that put it last.  A revision here is that number, below it the nonce of the transaction
(`nb_api.revisions`), and below that the slot of the write.  A transaction compares the numbers of the objects' keys and
puts

- the objects, each with what happened to it; a deleted object stays as a tombstone,
- the *head*, one key that every transaction puts and whose value has its nonce and names its objects,
- an entry of the outbox for each, whole, so that no compaction can take it away.

A write is built on what is known of its object, from an earlier read or write
(`heliograph_drivers.db.etcd.known`), and is one round trip when that is still so.  Else etcd answers with what the
object is, and it is tried again.

The head makes the history of etcd the feed.  Its number tells the newest revision, its history lists the transactions,
and a watcher hears of each.  A short stretch of the feed is read by asking for the head and then the objects
as of each transaction, many in one request; a long one by a watch that begins in the past, which etcd serves only every
100 ms but then in bulk.  Transactions of several writes put a key for their size too: how often each key was put tells
how many changes there were, which compaction needs to know.

Compaction is etcd's own and concerns everything in it: one by an operator, or for another prefix, shortens this feed
too.  Other transactions count too (an entry leaves the outbox, another application writes), and most have fewer writes
than they may have, so revisions skip numbers.  etcd has no clock that can be asked: ages are measured by the Date of
its answers, to the second.  It has no index by topic either: a snapshot reads all objects of its tables.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar
from urllib.parse import SplitResult

import msgspec
from oslo_config import cfg

from heliograph_drivers.db.etcd import config
from heliograph_drivers.db.etcd.feed import EtcdFeed
from heliograph_drivers.db.etcd.http import EtcdClient
from heliograph_drivers.db.etcd.keys import PLACES, EtcdKeys, EtcdRecord, Marker, WaitingWrite, end_of
from heliograph_drivers.db.etcd.known import KnownObjects
from heliograph_drivers.db.etcd.own_entries import OwnEntries
from heliograph_drivers.db.etcd.refusals import Compacted
from heliograph_drivers.db.etcd.snapshot import EtcdSnapshot
from heliograph_drivers.db.etcd.transaction import CommitAttempt, decode_record
from heliograph_drivers.db.etcd.wire.messages import (
    CompactAnswer,
    KeyValue,
    PutAnswer,
    RangeAnswer,
    StatusAnswer,
    Txn,
    TxnAnswer,
    found_in,
    read_operations,
)  # fmt: skip
from nb_api.core import checks
from nb_api.core.writes import CheckedWrite, not_found
from nb_api.db_api import Change, DbApi, DbObject, Snapshot, ToldReport, Written
from nb_api.errors import DbError, DbUnavailable
from nb_api.revisions import HistoryCheck
from nb_api.writing.outbox_age import OutboxAge
from pubsub_api.errors import Closed
from pubsub_api.runtime.sockets.addresses import is_loopback

LOG = logging.getLogger(__name__)

_FORGETFUL = ("3.5.0", "3.5.1", "3.5.2")
"""They save the index of what they have applied apart from the data; after kill -9 a write may count as applied that is
not there."""
_OPERATIONS_MAX = 100
"""In one transaction; a server refuses more than 128 unless it is told otherwise."""
_WRITES_MAX = 40
"""In one transaction: each is up to three operations, and two are for all of them."""
_REPORTS_PORTION = 1000
"""Reports that are read at a time."""

_decode_waiting = msgspec.msgpack.Decoder(WaitingWrite).decode
_encode = msgspec.msgpack.Encoder().encode


class EtcdDb(DbApi):
    """The driver.  See the module's description."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {config.GROUP: config.OPTIONS}
    uses_tls = True
    transaction_limit: ClassVar[int] = _WRITES_MAX

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._settings = config.read_settings(conf, url)
        self._keys = EtcdKeys(self._settings.prefix)
        self._client = EtcdClient(self._settings)
        self._known = KnownObjects()
        self._own_entries = OwnEntries(self._keys)
        self._age = OutboxAge()
        self._feed = EtcdFeed(self._client, self._keys, self._settings.operation_timeout_s, _OPERATIONS_MAX)

    def initialize(self) -> None:
        if self._client.endpoints.are_several:
            self._client.find_clusters()
        version = self._client.call("maintenance/status", {}, StatusAnswer).version
        if version in _FORGETFUL:
            LOG.warning("etcd %s may lose acknowledged writes when it is killed: use 3.5.3 or later", version)
        is_remote = not all(is_loopback(endpoint.host) for endpoint in self._settings.endpoints)
        if is_remote and (self._settings.security is None or not self._settings.user):
            LOG.warning("%s is used without TLS or login: every host that reaches it can read or change everything",
                        self._settings.address)  # fmt: skip
        self.revision()

    def close(self) -> None:
        self._client.close()
        self._feed.close()

    def release_idle(self) -> None:
        self._client.close_idle()
        self._feed.release_idle()

    # -- objects

    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        """Try on what is known of the objects until no other writer was faster."""
        deadline = time.monotonic() + self._settings.operation_timeout_s
        names = [self._keys.object(write.table, write.key) for write in writes]
        found, is_read = self._recall(writes, names)
        while True:
            try:
                attempt = CommitAttempt(
                    self._keys, self._own_entries, writes, names, found, self._client.clock.now()
                )  # fmt: skip
            except DbError:
                if is_read:
                    raise
                found, is_read = self._read_all(names), True  # what was seen before is no reason to refuse
                continue
            if is_read and attempt.writes_nothing:
                return attempt.outcome(0)
            answer = self._client.transact(attempt.request(compares_values=not is_read))
            if answer.succeeded:
                for left in attempt.left_behind(answer.revision):
                    self._known.saw(left.key, left)
                return attempt.outcome(answer.revision)
            found, is_read = self._saw(names, answer.found), True
            if time.monotonic() > deadline:
                raise DbUnavailable(f"{writes[0].table} {writes[0].key!r} was changed by others all the time")

    def get(self, table: str, key: str) -> DbObject:
        checks.check_object(table, key)
        found = self._read(self._keys.object(table, key))
        record = decode_record(found.value) if found else None
        version = record.revision(found.mod_revision) if found and record else None
        if record is None or record.value is None or version is None:
            raise not_found(table, key, version)
        return DbObject(table, key, record.topic, checks.decode_value(record.value), version)

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> Snapshot:
        selection = checks.TopicSelection(tables, topics, buckets)
        return EtcdSnapshot(self._client, self._keys, selection, self._settings.snapshot_portion)

    def allocate(self, name: str) -> int:
        """etcd counts how often a key was put: that is the counter."""
        checks.check_name(name, "counter")
        request = {"key": self._keys.counter(name), "value": b"", "prev_kv": True}
        before = self._client.call("kv/put", request, PutAnswer).prev_kv
        return 1 if before is None else before.version + 1

    # -- changes

    def revision(self) -> int:
        return self._feed.revision()

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        checks.check_revision(after_revision)
        checks.check_limit(limit)
        return self._feed.changes(after_revision, limit)

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        checks.check_revisions(revisions)
        return self._feed.changes_of(revisions)

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        checks.check_revisions(revisions)
        return self._feed.check_history(revisions)

    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        checks.check_revision(after_revision)
        checks.check_not_negative(timeout_s, "timeout_s")
        deadline = time.monotonic() + timeout_s
        self._client.check_open()
        try:
            return self._feed.wait(after_revision, deadline)
        except Closed:
            return False

    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        checks.check_revision(keep_changes, "number of changes to keep")
        checks.check_not_negative(keep_tombstones_s, "keep_tombstones_s")
        self._drop_tombstones(keep_tombstones_s)
        last, lost = self._feed.find_cut(keep_changes)
        if not lost:
            return 0
        # A reader at just this change can go on, and must be able to tell.  The put is needed in any case: etcd
        # compacts up to a revision that exists, and the one after the last change need not.
        marker = Marker(last + 1, self._feed.revision_as_of(last))
        self._client.call("kv/put", {"key": self._keys.marker, "value": _encode(marker)}, PutAnswer)
        with contextlib.suppress(Compacted):  # another process has gone further meanwhile
            self._client.call("kv/compaction", {"revision": marker.store_revision}, CompactAnswer)
        return lost

    # -- outbox

    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        checks.check_not_negative(older_than_s, "older_than_s")
        checks.check_limit(limit)
        request = {
            "key": self._keys.outbox, "range_end": end_of(self._keys.outbox),
            "sort_target": "MOD", "sort_order": "ASCEND", "limit": limit + _WRITES_MAX,
            "min_mod_revision": after_revision // PLACES,
        }  # fmt: skip
        now = time.monotonic()
        found = self._client.call("kv/range", request, RangeAnswer).kvs
        found = sorted(found, key=self._keys.outbox_revision)  # etcd does not sort what has the same number
        found = [entry for entry in found if self._keys.outbox_revision(entry) > after_revision]
        waiting = [(entry.mod_revision, _decode_waiting(entry.value)) for entry in found[:limit]]
        old = self._age.old_up_to(older_than_s, now)
        self._age.looked(older_than_s, now, self._keys.outbox_revision(found[-1]) if found else after_revision)
        return [
            one.record.as_change(store_revision, one.table, one.key)
            for store_revision, one in waiting
            if self._is_older(one.record, older_than_s) or one.record.revision(store_revision) <= old
        ]

    def mark_published(self, revisions: Sequence[int]) -> None:
        checks.check_revisions(revisions)
        ranges, unknown = self._own_entries.ranges(revisions)
        self._remove(ranges)
        self._own_entries.forget(revisions)
        if unknown:
            self._find_and_remove(unknown)

    def _find_and_remove(self, revisions: Sequence[int]) -> None:
        """Entries that another process has put, or this one long ago."""
        request = {
            "key": self._keys.outbox, "range_end": end_of(self._keys.outbox), "keys_only": True,
            "min_mod_revision": min(revisions) // PLACES, "max_mod_revision": max(revisions) // PLACES,
        }  # fmt: skip
        wanted = frozenset(revisions)
        found = self._client.call("kv/range", request, RangeAnswer).kvs
        self._remove([(entry.key, b"") for entry in found if self._keys.outbox_revision(entry) in wanted])

    # -- reports

    def tell_report(self, name: str, data: bytes) -> ToldReport:
        checks.check_report(name, data)
        request = {"key": self._keys.report(name), "value": data, "prev_kv": True}
        before = self._client.call("kv/put", request, PutAnswer, is_repeatable=True).prev_kv
        start = self._keys.reports
        request = {"key": start, "range_end": end_of(start), "count_only": True}
        total = self._client.call("kv/range", request, RangeAnswer).count
        return ToldReport(None if before is None else before.value, total)

    def reports(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        start, more = self._keys.reports, True
        while more:
            request = {"key": start, "range_end": end_of(self._keys.reports), "limit": _REPORTS_PORTION}
            answer = self._client.call("kv/range", request, RangeAnswer)
            found |= {self._keys.report_name(entry.key): entry.value for entry in answer.kvs}
            more = answer.more
            if more:
                start = answer.kvs[-1].key + b"\0"
        return found

    def forget_reports(self, names: Sequence[str]) -> None:
        self._client.check_open()
        self._remove([(self._keys.report(name), b"") for name in names])

    # -- inside

    def _read(self, key: bytes) -> KeyValue | None:
        kvs = self._client.call("kv/range", {"key": key}, RangeAnswer).kvs
        return self._saw([key], [kvs[0] if kvs else None])[0]

    def _read_all(self, names: Sequence[bytes]) -> list[KeyValue | None]:
        if len(names) == 1:
            return [self._read(names[0])]
        request = {"success": read_operations(names)}
        return self._saw(names, found_in(self._client.call("kv/txn", request, TxnAnswer, is_repeatable=True)))

    def _recall(self, writes: Sequence[CheckedWrite], names: Sequence[bytes]) -> tuple[Sequence[KeyValue | None], bool]:
        """The keys of the objects as far as they are known, and whether they were read for this.  What is created is
        hoped not to be there, which saves a read."""
        known = [self._known.get(name) for name in names]
        for write, kv in zip(writes, known, strict=True):
            may_be_new = write.action in ("create", "put") and write.expected_version is None
            if kv is None and not may_be_new:
                return self._read_all(names), True
        return known, False

    def _saw(self, names: Sequence[bytes], found: list[KeyValue | None]) -> list[KeyValue | None]:
        for name, kv in zip(names, found, strict=True):
            self._known.saw(name, kv)
        return found

    def _is_older(self, record: EtcdRecord, age_s: float) -> bool:
        return age_s == 0 or record.time <= self._client.clock.now() - age_s

    def _drop_tombstones(self, age_s: float) -> None:
        request = {"key": self._keys.tombstones, "range_end": end_of(self._keys.tombstones)}
        for entry in self._client.call("kv/range", request, RangeAnswer).kvs:
            name = entry.key[len(self._keys.tombstones) :]
            found = self._read(name)
            if found and found.mod_revision == entry.mod_revision and self._is_older(decode_record(found.value), age_s):
                self._remove_if_unchanged(name, entry)

    def _remove_if_unchanged(self, name: bytes, entry: KeyValue) -> None:
        self._client.transact(Txn([(name, entry.mod_revision, None)], removals=[(name, b""), (entry.key, b"")]))

    def _remove(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        for start in range(0, len(ranges), _OPERATIONS_MAX):
            self._client.transact(Txn(removals=ranges[start : start + _OPERATIONS_MAX]), is_repeatable=True)
