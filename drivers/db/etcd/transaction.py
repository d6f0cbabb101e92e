"""One attempt to commit: a transaction of etcd that is right if the objects are as they are believed to be.

`heliograph_drivers.db.etcd` tells what a transaction puts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from heliograph_drivers.db.etcd.keys import EtcdHead, EtcdKeys, EtcdRecord, place_of
from heliograph_drivers.db.etcd.own_entries import OwnEntries
from heliograph_drivers.db.etcd.wire.messages import KeyValue, Txn
from nb_api.core.writes import CheckedWrite, find_refusal, plan_write, refusal_error
from nb_api.db_api import Written
from nb_api.revisions import new_nonce

decode_record = msgspec.msgpack.Decoder(EtcdRecord).decode
_encode = msgspec.msgpack.Encoder().encode


class CommitAttempt:
    """A transaction that is about to be tried.  ``found``: the keys of the objects as they are believed to be, None for
    one that is not there."""

    def __init__(
        self,
        keys: EtcdKeys,
        entries: OwnEntries,
        writes: Sequence[CheckedWrite],
        names: Sequence[bytes],
        found: Sequence[KeyValue | None],
        now: float,
    ) -> None:
        """``now``: the time by etcd's clock.  Raises what refuses a write."""
        self._keys = keys
        self._own_entries = entries
        self._writes = writes
        self._names = names
        self._found = found
        self._plans = [_plan(writes, position, kv) for position, kv in enumerate(found)]
        self._written = [position for position, plan in enumerate(self._plans) if plan.action is not None]
        self._nonce = new_nonce()
        self._records: dict[int, EtcdRecord] = {}
        """By the position of the write; those that write something."""
        for place, position in enumerate(self._written):
            plan = self._plans[position]
            assert plan.action is not None
            self._records[position] = EtcdRecord(
                plan.action, plan.topic, plan.left_topic, writes[position].value, now,
                place_of(place, len(self._written), self._nonce),
            )  # fmt: skip
        self._encoded = {position: _encode(record) for position, record in self._records.items()}
        self._entries: dict[int, tuple[int, bytes]] = {}
        """Of the outbox, by the same position."""

    @property
    def writes_nothing(self) -> bool:
        """All objects are so already."""
        return not self._written

    def request(self, *, compares_values: bool) -> Txn:
        """What etcd is asked to do.  If the objects are otherwise, it does nothing and answers with what they are."""
        compares = [
            (name, kv.mod_revision, kv.value if compares_values else None) if kv else (name, 0, None)
            for name, kv in zip(self._names, self._found, strict=True)
        ]
        revived = [position for position in self._written if self._is_revived(position)]
        removals = [(self._keys.tombstone(self._names[position]), b"") for position in revived]
        return Txn(compares, self._puts(), removals, self._names)

    def _puts(self) -> list[tuple[bytes, bytes]]:
        if not self._written:
            return []
        keys = self._keys
        head = EtcdHead([self._names[position] for position in self._written], self._nonce)
        puts = [(keys.head, _encode(head))]
        if len(self._written) > 1:
            puts.append((keys.size(len(self._written)), b""))
        for position, record in self._records.items():
            write, name, encoded = self._writes[position], self._names[position], self._encoded[position]
            puts.append((name, encoded))
            if write.with_outbox:
                entry = self._own_entries.next(record.place)
                self._entries[position] = entry
                puts.append((entry[1], _encode((write.table, write.key, msgspec.Raw(encoded)))))  # a WaitingWrite
            if record.action == "delete":
                puts.append((keys.tombstone(name), b""))
        return puts

    def _is_revived(self, position: int) -> bool:
        return self._records[position].action == "create" and self._found[position] is not None

    def outcome(self, store_revision: int) -> list[Written]:
        """What became of the writes, when etcd has done it under that number."""
        written = list(self._plans)
        for position, record in self._records.items():
            revision = record.revision(store_revision)
            written[position] = written[position]._replace(version=revision)
            if position in self._entries:
                self._own_entries.was_put(revision, self._entries[position])
        return written

    def left_behind(self, store_revision: int) -> list[KeyValue]:
        """The keys of the objects as they are then, those that were written."""
        return [
            KeyValue(self._names[position], store_revision, value=encoded)
            for position, encoded in self._encoded.items()
        ]


def _plan(writes: Sequence[CheckedWrite], position: int, kv: KeyValue | None) -> Written:
    """Raises what refuses the write."""
    write = writes[position]
    before = decode_record(kv.value) if kv else None
    version = before.revision(kv.mod_revision) if kv and before else None
    is_alive = before is not None and before.value is not None
    refusal = find_refusal(write, version, is_alive=is_alive)
    if refusal is not None:
        raise refusal_error(writes, position, refusal, version)
    is_equal = before is not None and before.value == write.value
    return plan_write(write, version, before.topic if before else None, is_alive=is_alive, is_equal=is_equal)
