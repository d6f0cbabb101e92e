"""What a local cache tells its user: an object appeared, changed or went away, or the copy was brought up to date.

Changes come by the hundred thousand, so they hold what the cache holds, and make an object of it when one asks.  Such
an object belongs to the caller: its value is a copy.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, Literal

import msgspec

from nb_api.core.changes import DbObject, V_co

_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_unpack = msgspec.msgpack.Decoder().decode
_SIZE32 = struct.Struct(">BI")
_ARRAY32, _MAP32 = 0xDD, 0xDF

SyncKind = Literal["snapshot", "topics", "delta", "provisional", "overrun"]
"""How a copy was brought up to date: by all objects, by those of topics that are new, or by the changes it had missed.
``provisional``: the database is away, and what another source has of it was applied; the database is still to be asked.
``overrun``: it is up to date, and what led there was not told one by one because it was not taken in time."""

Ending = Literal["deleted", "absent", "moved", "unfollowed", "unselected"]
"""Why an object is no longer in a copy.

``deleted``: it was deleted in the database.  ``moved``: it has a topic now that is not followed.  ``unfollowed``: its
topic is not followed any more, because of `LocalCache.remove_topic`.  ``unselected``: its value is no longer what
``where`` asks for.  ``absent``: it was not among the objects of a snapshot, which tells that it was deleted or moved,
and not which of them.
"""


def pack(value: Any) -> bytes:
    """What `CachedObject` holds of a value.  Never raises for one that was decoded, however deep the caller's stack."""
    try:
        return _encode(value)
    except RecursionError:
        return _pack_in_steps(value)


def _pack_in_steps(value: Any) -> bytes:
    """Without recursion."""
    parts: list[bytes] = []
    rest = [value]
    while rest:
        one = rest.pop()
        if type(one) is list:
            parts.append(_SIZE32.pack(_ARRAY32, len(one)))
            rest += reversed(one)
        elif type(one) is dict:
            parts.append(_SIZE32.pack(_MAP32, len(one)))
            rest += (part for item in reversed(one.items()) for part in reversed(item))
        else:
            parts.append(_encode(one))
    return b"".join(parts)


def is_same_value(one: object, other: object) -> bool:
    """Whether both are equal as msgpack: True is not 1.  The order of fields does not matter."""
    if pack(one) == pack(other):
        return True
    try:
        return _encode_sorted(one) == _encode_sorted(other)
    except (TypeError, ValueError):  # fields of types that cannot be sorted
        return one == other


class CachedObject(msgspec.Struct, gc=False):
    """One version of an object in a cache; its table and key are where it is found.  Nothing but ``index_values``
    changes after it was made."""

    version: int
    topic: str
    packed: bytes
    """The value as msgpack.  Each reader gets a value of its own, and to unpack one takes no longer than to copy it;
    packed, it takes less than half of the memory, and is in one place of it."""
    index_values: tuple[Any, ...] = ()
    """What the functions of the table's indexes made of it, in the order of the indexes; kept here because a dict of
    its own would take as much memory as the copy's."""

    @property
    def value(self) -> Any:
        """A value that shares nothing with that of any other reader."""
        return _unpack(self.packed)

    def named(self, table: str, key: str) -> DbObject:
        return DbObject(table, key, self.topic, _unpack(self.packed), self.version)


class Created(msgspec.Struct, Generic[V_co], frozen=True, gc=False):
    """An object is new to this copy."""

    table: str
    key: str
    _entry: CachedObject

    @property
    def object(self) -> DbObject[V_co]:
        return self._entry.named(self.table, self.key)

    @property
    def version(self) -> int:
        return self._entry.version

    def __repr__(self) -> str:
        return f"Created(object={self._entry.named(self.table, self.key)!r})"


class Updated(msgspec.Struct, Generic[V_co], frozen=True, gc=False):
    """An object has a newer version."""

    table: str
    key: str
    _entry: CachedObject
    _entry_before: CachedObject

    @property
    def object(self) -> DbObject[V_co]:
        return self._entry.named(self.table, self.key)

    @property
    def before(self) -> DbObject[V_co]:
        return self._entry_before.named(self.table, self.key)

    @property
    def version(self) -> int:
        return self._entry.version

    def __repr__(self) -> str:
        before = self._entry_before.named(self.table, self.key)
        return f"Updated(object={self._entry.named(self.table, self.key)!r}, {before=!r})"


class Deleted(msgspec.Struct, Generic[V_co], frozen=True, gc=False):
    """An object is gone from this copy; ``reason`` tells whether it is gone from the database."""

    table: str
    key: str
    _entry: CachedObject
    version: int
    """Of its end: the version of the tombstone, or as much of it as is known."""
    reason: Ending = "deleted"
    moved_to: str | None = None
    """The topic that it has now, when ``reason`` is ``moved``."""

    @property
    def object(self) -> DbObject[V_co]:
        """As it was last."""
        return self._entry.named(self.table, self.key)

    def __repr__(self) -> str:
        held = self._entry.named(self.table, self.key)
        return f"Deleted(object={held!r}, version={self.version}, reason={self.reason!r}, moved_to={self.moved_to!r})"


class Resynced(msgspec.Struct, frozen=True):
    """The copy was compared with the database.  Every difference was told before this, unless ``kind`` is overrun."""

    kind: SyncKind
    reason: str
    revision: int
    """Of the database: the copy is at least as new."""
    created: int = 0
    updated: int = 0
    deleted: int = 0
    topics: tuple[str, ...] = ()
    """The filters that were read, when it was not everything."""

    @property
    def is_told(self) -> bool:
        """False: read the whole cache again, because single changes were left out."""
        return self.kind != "overrun"


Difference = Created | Updated | Deleted
CacheChange = Difference | Resynced
