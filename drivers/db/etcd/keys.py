"""The keys in etcd and what their values are."""

from __future__ import annotations

import msgspec

from heliograph_drivers.db.etcd.wire.messages import KeyValue
from nb_api.core import checks
from nb_api.db_api import Action, Change
from nb_api.revisions import NONCE_BITS

_SLOTS = 64
"""Writes that one transaction of etcd has room for.  The last one has the last of these slots, so that where a
transaction ends is known without looking at it."""
PLACES = _SLOTS << NONCE_BITS
"""Revisions that one transaction of etcd stands for: its nonce (`nb_api.revisions`) and the slot of a write make a
*place* among them."""
_PLACE_BYTES = 4
ENTRY_NUMBER_BYTES = 8


def place_of(position: int, count: int, nonce: int) -> int:
    """Of a write among those of its transaction, which has ``count`` writes."""
    return nonce * _SLOTS + _SLOTS - count + position


class EtcdHead(msgspec.Struct, frozen=True, array_like=True):
    """The value of the head: the keys of the objects that a transaction wrote, in order."""

    names: list[bytes]
    nonce: int

    def revisions(self, store_revision: int) -> list[int]:
        """Of all its writes.  ``store_revision`` is the number of the transaction."""
        count = len(self.names)
        return [store_revision * PLACES + place_of(position, count, self.nonce) for position in range(count)]


_decode_head = msgspec.msgpack.Decoder(EtcdHead).decode


def revisions_of(head: KeyValue) -> list[int]:
    """Of the writes of the transaction that put the head."""
    return _decode_head(head.value).revisions(head.mod_revision)


def newest_of(head: KeyValue | None) -> int:
    """The last of them, 0 when there was none yet."""
    return revisions_of(head)[-1] if head else 0


def named_by(head: KeyValue) -> list[tuple[int, bytes]]:
    """The revision of each of these writes, and the key of its object."""
    return list(zip(revisions_of(head), _decode_head(head.value).names, strict=True))


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """The value of the marker: what the last compaction of this feed has taken away."""

    store_revision: int
    """The oldest that etcd knew after it."""
    last: int
    """The newest revision of the feed that is older, 0 when there is none."""


class EtcdRecord(msgspec.Struct, frozen=True, array_like=True):
    """The value of an object's key: its last change.  ``value`` is msgpack, None in a tombstone."""

    action: Action
    topic: str
    left_topic: str | None
    value: bytes | None
    time: float
    """Seconds since 1970 by etcd's clock."""
    place: int

    def revision(self, store_revision: int) -> int:
        """``store_revision`` is the number of the transaction that put it."""
        return store_revision * PLACES + self.place

    def as_change(self, store_revision: int, table: str, key: str) -> Change:
        value = None if self.value is None else checks.decode_value(self.value)
        revision = self.revision(store_revision)
        return Change(revision, self.action, table, key, self.topic, value, self.left_topic)


class WaitingWrite(msgspec.Struct, frozen=True, array_like=True):
    """The value of an entry of the outbox."""

    table: str
    key: str
    record: EtcdRecord


class EtcdKeys:
    """Names have no control characters, so a zero byte ends each."""

    def __init__(self, prefix: bytes) -> None:
        base = prefix + b"\0"
        self.head = base + b"head"
        self.marker = base + b"marker"
        self._sizes = self.head + b"\0"
        self.objects = base + b"object\0"
        self.outbox = base + b"outbox\0"
        self.tombstones = base + b"tombstone\0"
        self._counters = base + b"counter\0"
        self.reports = base + b"report\0"

    def size(self, count: int) -> bytes:
        """The key that every transaction of so many writes puts.  It follows the head, so that one range has them all:
        how often each was put says how many changes there were."""
        return self._sizes + bytes([count])

    @property
    def heads(self) -> tuple[bytes, bytes]:
        """The range of the head and the sizes."""
        return self.head, self.head + b"\1"

    def size_of(self, key: bytes) -> int:
        """How many writes a transaction has that puts that key of `heads`, beyond what the others of them say."""
        return 1 if key == self.head else key[-1] - 1

    def table(self, table: str) -> bytes:
        """What the keys of the objects of the table begin with."""
        return self.objects + table.encode() + b"\0"

    def object(self, table: str, key: str) -> bytes:
        return self.table(table) + key.encode()

    def tombstone(self, name: bytes) -> bytes:
        """The key that marks the object of that key as deleted."""
        return self.tombstones + name

    def outbox_entry(self, identity: bytes, place: int) -> bytes:
        return self.outbox + identity + place.to_bytes(_PLACE_BYTES, "big")

    def outbox_revision(self, entry: KeyValue) -> int:
        """Of the change that the entry is about."""
        return entry.mod_revision * PLACES + int.from_bytes(entry.key[-_PLACE_BYTES:], "big")

    def counter(self, name: str) -> bytes:
        return self._counters + name.encode()

    def report(self, name: str) -> bytes:
        return self.reports + name.encode()

    def report_name(self, key: bytes) -> str:
        return key[len(self.reports) :].decode()

    def split(self, name: bytes) -> tuple[str, str]:
        """Table and key of an object's key."""
        table, _, key = name[len(self.objects) :].partition(b"\0")
        return table.decode(), key.decode()


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with a prefix that ends in a zero byte."""
    return prefix[:-1] + b"\1"
