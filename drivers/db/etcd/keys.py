"""The keys in etcd and what their values are."""

from __future__ import annotations

import msgspec

from nb_api import checks
from nb_api.db_api import Action, Change


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The value of an object's key: its last change.  ``value`` is msgpack, None in a tombstone."""

    action: Action
    topic: str
    left_topic: str | None
    value: bytes | None
    time: float
    """Seconds since 1970 by etcd's clock."""

    def as_change(self, revision: int, table: str, key: str) -> Change:
        value = None if self.value is None else checks.decode_value(self.value)
        return Change(revision, self.action, table, key, self.topic, value, self.left_topic)


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """The value of an entry of the outbox."""

    table: str
    key: str
    record: Record


class Keys:
    """Names have no control characters, so a zero byte ends each."""

    def __init__(self, prefix: bytes) -> None:
        base = prefix + b"\0"
        self.head = base + b"head"
        self.marker = base + b"marker"
        self.objects = base + b"object\0"
        self.outbox = base + b"outbox\0"
        self.tombstones = base + b"tombstone\0"
        self._counters = base + b"counter\0"

    def table(self, table: str) -> bytes:
        """What the keys of the objects of the table begin with."""
        return self.objects + table.encode() + b"\0"

    def object(self, table: str, key: str) -> bytes:
        return self.table(table) + key.encode()

    def tombstone(self, name: bytes) -> bytes:
        """The key that marks the object of that key as deleted."""
        return self.tombstones + name

    def counter(self, name: str) -> bytes:
        return self._counters + name.encode()

    def split(self, name: bytes) -> tuple[str, str]:
        """Table and key of an object's key."""
        table, _, key = name[len(self.objects) :].partition(b"\0")
        return table.decode(), key.decode()


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with a prefix that ends in a zero byte."""
    return prefix[:-1] + b"\1"
