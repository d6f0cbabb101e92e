"""The keys of a database in Redis and what their values are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_api.core import checks
from nb_api.db_api import Action, Change

SEPARATOR = b"\0"
"""Between table and key in the name of an object.  Neither can contain it."""


class RedisKeys:
    """Every name is a key of Redis."""

    def __init__(self, prefix: bytes) -> None:
        self.state = prefix + b":state"
        """Hash: ``revision``, ``compacted``, and ``run``, the process of the server that wrote last."""
        self.objects = prefix + b":objects"
        """Hash of records by name, see `RedisRecord`."""
        self.names = prefix + b":names"
        """Sorted set of the names of objects, in the order of their bytes: how a snapshot finds its way."""
        self.deleted = prefix + b":deleted"
        """Hash of the versions of tombstones by name."""
        self.deletions = prefix + b":deletions"
        """Sorted set of the names of tombstones, by time."""
        self.feed = prefix + b":feed"
        """Stream of changes.  The revision is the first number of an entry's identity."""
        self.outbox = prefix + b":outbox"
        """Sorted set of the revisions that are not confirmed, by themselves."""
        self.kept = prefix + b":kept"
        """Stream of changes that the feed has lost and the outbox has not."""
        self.snapshots = prefix + b":snapshots"
        """Sorted set of the open snapshots, by the time until which their readers must ask again."""
        self.undo = prefix + b":undo"
        """Stream of records that were overwritten while a snapshot was open, by the revision that did it."""
        self.counters = prefix + b":counters"
        """Hash of counters by name."""
        self.reports = prefix + b":reports"
        """Hash of reports by name."""


class RedisRecord(NamedTuple):
    """An object: ``version``, a space, the bytes of its topic, a space, the topic, the value."""

    version: int
    topic: str
    value: bytes


def read_record(record: bytes) -> RedisRecord:
    version, topic_bytes, rest = record.split(b" ", 2)
    end = int(topic_bytes)
    return RedisRecord(int(version), rest[:end].decode(), rest[end:])


def name_of(table: str, key: str) -> bytes:
    return table.encode() + SEPARATOR + key.encode()


def split_name(name: bytes) -> tuple[str, str]:
    table, _, key = name.partition(SEPARATOR)
    return table.decode(), key.decode()


def revision_of(identity: bytes) -> int:
    """Of an entry of a stream."""
    return int(identity.partition(b"-")[0])


class OutboxEntry(NamedTuple):
    """An entry of the feed."""

    change: Change
    time: float
    """Of the commit, by the server's clock, in seconds since 1970."""


def read_entry(identity: bytes, fields: Sequence[bytes]) -> OutboxEntry:
    # The names of the fields are in between, for readers of the stream.
    action, name, topic, left_topic, time, value = fields[1::2]
    decoded = None if action == b"delete" else checks.decode_value(value)
    table, key = split_name(name)
    kind: Action = action.decode()  # type: ignore[assignment]  # only our script writes it
    change = Change(
        revision_of(identity), kind, table, key, topic.decode(), decoded, left_topic.decode() if left_topic else None
    )
    return OutboxEntry(change, float(time))
