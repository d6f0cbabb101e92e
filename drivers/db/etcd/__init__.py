"""Objects and their feed in etcd, 3.4 or later.

etcd counts its transactions, and that number is the revision here: it is given at commit, in the order of commits, and
every key keeps the number of the transaction that put it last.  A change is one transaction that compares the number of
the object's key and puts

- the object, with what happened to it; a deleted object stays as a tombstone,
- the *head*, one key that every change puts and whose value names the object,
- an entry of the outbox, whole, so that no compaction can take it away.

The head makes the history of etcd the feed.  Its number is the newest revision, its history lists the changes, its
count of puts numbers them, and whoever watches it hears of each.  A short stretch of the feed is read by asking for the
head and then the objects as of each revision, many in one transaction; a long one by a watch that begins in the past,
which etcd serves only every 100 ms but then in bulk.

Compaction is etcd's own and concerns everything in it: one by an operator, or for another prefix, shortens this feed
too.  Other transactions count too (an entry leaves the outbox, another application writes), so revisions skip numbers.
etcd has no clock that can be asked: ages are measured by the Date of its answers, to the second.  It has no index by
topic either: a snapshot reads all objects of its tables.  TLS and etcd's users are not supported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import SplitResult

import msgspec
from oslo_config import cfg

from drivers.db.etcd import config
from drivers.db.etcd.feed import EtcdFeed
from drivers.db.etcd.http import CompactAnswer, Compacted, EtcdClient, KeyValue, PutAnswer, RangeAnswer, TxnAnswer
from drivers.db.etcd.keys import Keys, Record, Waiting, end_of
from drivers.db.etcd.snapshot import EtcdSnapshot
from nb_api import checks
from nb_api.db_api import Action, Change, DbApi, DbObject, Snapshot
from nb_api.errors import DbUnavailable, ObjectExists, ObjectNotFound, VersionConflict
from pubsub_api.errors import Closed

list_opts = config.list_opts

_OPERATIONS_MAX = 100
"""In one transaction; a server refuses more than 128 unless it is told otherwise."""

_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_waiting = msgspec.msgpack.Decoder(Waiting).decode
_encode = msgspec.msgpack.Encoder().encode


class EtcdDb(DbApi):
    """The driver.  See the module's description."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {config.GROUP: config.OPTIONS}

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._settings = config.read_settings(conf, url)
        self._keys = Keys(self._settings.prefix)
        self._client = EtcdClient(self._settings)
        self._feed = EtcdFeed(self._client, self._keys, self._settings.operation_timeout_s, _OPERATIONS_MAX)

    def initialize(self) -> None:
        self.revision()

    def close(self) -> None:
        self._client.close()

    # -- objects

    def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        checks.check_object(table, key, topic)
        return self._change("create", table, key, topic, self._encode_value(value), None)

    def set(
        self, table: str, key: str, value: Any, *, topic: str | None = None, expected_version: int | None = None
    ) -> int:
        checks.check_object(table, key, topic)
        checks.check_expected(expected_version)
        return self._change("set", table, key, topic, self._encode_value(value), expected_version)

    def delete(self, table: str, key: str, *, expected_version: int | None = None) -> int:
        checks.check_object(table, key)
        checks.check_expected(expected_version)
        return self._change("delete", table, key, None, None, expected_version)

    def get(self, table: str, key: str) -> DbObject:
        checks.check_object(table, key)
        found = self._read(self._keys.object(table, key))
        record = _decode_record(found.value) if found else None
        if found is None or record is None or record.value is None:
            raise ObjectNotFound(
                f"there is no {table} {key!r}", deleted_version=None if found is None else found.mod_revision
            )
        return DbObject(table, key, record.topic, checks.decode_value(record.value), found.mod_revision)

    def snapshot(self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None) -> Snapshot:
        selection = checks.Selection(tables, topics)
        return EtcdSnapshot(self._client, self._keys, selection, self._settings.snapshot_portion)

    def allocate(self, name: str) -> int:
        """etcd counts how often a key was put: that is the counter."""
        checks.check_name(name, "counter")
        request = {"key": self._keys.counter(name), "value": b"", "prev_kv": True}
        before = self._client.call("kv/put", request, PutAnswer).prev_kv
        return 1 if before is None else before.version + 1

    # -- changes

    def revision(self) -> int:
        head = self._feed.head()
        return head.mod_revision if head else 0

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        checks.check_revision(after_revision)
        checks.check_limit(limit)
        return self._feed.changes(after_revision, limit)

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
        # etcd compacts up to a revision that exists, and the one after the last change need not.
        self._client.call("kv/put", {"key": self._keys.marker, "value": b""}, PutAnswer)
        with contextlib.suppress(Compacted):  # somebody else has gone further meanwhile
            self._client.call("kv/compaction", {"revision": last + 1}, CompactAnswer)
        return lost

    # -- outbox

    def unpublished(self, *, older_than_s: float = 0.0, limit: int = 1000) -> list[Change]:
        checks.check_not_negative(older_than_s, "older_than_s")
        checks.check_limit(limit)
        request = {
            "key": self._keys.outbox, "range_end": end_of(self._keys.outbox),
            "sort_target": "MOD", "sort_order": "ASCEND", "limit": limit,
        }  # fmt: skip
        found = self._client.call("kv/range", request, RangeAnswer).kvs
        waiting = [(entry.mod_revision, _decode_waiting(entry.value)) for entry in found]
        return [
            one.record.as_change(revision, one.table, one.key)
            for revision, one in waiting
            if self._is_older(one.record, older_than_s)
        ]

    def mark_published(self, revisions: Sequence[int]) -> None:
        for revision in revisions:
            checks.check_revision(revision)
        if not revisions:
            return
        request = {
            "key": self._keys.outbox, "range_end": end_of(self._keys.outbox), "keys_only": True,
            "min_mod_revision": min(revisions), "max_mod_revision": max(revisions),
        }  # fmt: skip
        wanted = frozenset(revisions)
        found = self._client.call("kv/range", request, RangeAnswer).kvs
        self._remove(entry.key for entry in found if entry.mod_revision in wanted)

    # -- inside

    def _encode_value(self, value: Any) -> bytes:
        return checks.encode_value(value, bytes_max=self._settings.value_bytes_max)

    def _read(self, key: bytes) -> KeyValue | None:
        kvs = self._client.call("kv/range", {"key": key}, RangeAnswer).kvs
        return kvs[0] if kvs else None

    def _change(
        self, action: Action, table: str, key: str, topic: str | None, value: bytes | None, expected: int | None
    ) -> int:
        """Try on what is known of the object until nobody else was faster.  `create` begins with the hope that there is
        none, which saves it a read."""
        deadline = time.monotonic() + self._settings.operation_timeout_s
        found = None if action == "create" else self._read(self._keys.object(table, key))
        while True:
            before = _decode_record(found.value) if found else None
            self._check(action, f"{table} {key!r}", found, before, expected)
            record = self._follow_up(action, before, topic, value)
            answer = self._commit(table, key, found, record)
            if answer.succeeded:
                return answer.header.revision
            failed = answer.responses[0].response_range
            found = failed.kvs[0] if failed and failed.kvs else None
            if time.monotonic() > deadline:
                raise DbUnavailable(f"{table} {key!r} was changed by others all the time")

    @staticmethod
    def _check(action: Action, name: str, found: KeyValue | None, before: Record | None, expected: int | None) -> None:
        version = found.mod_revision if found else None
        is_alive = before is not None and before.value is not None
        if action == "create":
            if is_alive:
                raise ObjectExists(f"{name} exists, with version {version}")
            return
        if not is_alive:
            raise ObjectNotFound(f"there is no {name}", deleted_version=version)
        if expected is not None and expected != version:
            raise VersionConflict(f"{name} has version {version}, not {expected}")

    def _follow_up(self, action: Action, before: Record | None, topic: str | None, value: bytes | None) -> Record:
        old_topic = before.topic if before else ""
        new_topic = old_topic if topic is None else topic
        left = old_topic if action == "set" and old_topic != new_topic else None
        return Record(action, new_topic, left, value, self._client.clock.now())

    def _commit(self, table: str, key: str, found: KeyValue | None, record: Record) -> TxnAnswer:
        keys, name = self._keys, self._keys.object(table, key)
        puts = [(name, _encode(record)), (keys.head, name)]
        if self.with_outbox:
            puts.append((keys.outbox + os.urandom(16), _encode(Waiting(table, key, record))))
        if record.action == "delete":
            puts.append((keys.tombstone(name), b""))
        operations: list[dict[str, Any]] = [{"request_put": {"key": key, "value": value}} for key, value in puts]
        if record.action == "create" and found is not None:
            operations.append({"request_delete_range": {"key": keys.tombstone(name)}})
        version = found.mod_revision if found else 0
        request = {
            "compare": [{"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": version}],
            "success": operations,
            "failure": [{"request_range": {"key": name}}],
        }
        return self._client.call("kv/txn", request, TxnAnswer)

    def _is_older(self, record: Record, age_s: float) -> bool:
        return age_s == 0 or record.time <= self._client.clock.now() - age_s

    def _drop_tombstones(self, age_s: float) -> None:
        request = {"key": self._keys.tombstones, "range_end": end_of(self._keys.tombstones)}
        for entry in self._client.call("kv/range", request, RangeAnswer).kvs:
            name = entry.key[len(self._keys.tombstones) :]
            found = self._read(name)
            if (
                found
                and found.mod_revision == entry.mod_revision
                and self._is_older(_decode_record(found.value), age_s)
            ):
                self._remove_if_unchanged(name, entry)

    def _remove_if_unchanged(self, name: bytes, entry: KeyValue) -> None:
        compare = {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": entry.mod_revision}
        removals = [{"request_delete_range": {"key": key}} for key in (name, entry.key)]
        self._client.call("kv/txn", {"compare": [compare], "success": removals}, TxnAnswer)

    def _remove(self, keys: Iterable[bytes]) -> None:
        removals = [{"request_delete_range": {"key": key}} for key in keys]
        for start in range(0, len(removals), _OPERATIONS_MAX):
            self._client.call("kv/txn", {"success": removals[start : start + _OPERATIONS_MAX]}, TxnAnswer)
