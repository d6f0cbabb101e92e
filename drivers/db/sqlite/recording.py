"""From writes to rows: one transaction of the contract, in the SQLite transaction that the caller has begun.

Others may share that one, so what is refused must leave nothing behind.  Objects that are created are written at once,
and SQLite says how many of them were not there; only when that is not all of them they are looked at one by one, as
everything else is before it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from drivers.db.sqlite import schema
from nb_api.core.writes import CheckedWrite, find_refusal, refusal_error
from nb_api.revisions import next_revisions

_Place = tuple[str | None, str | None]
"""The topic of an object and, when it has left another one, that."""

_LOOK = "SELECT version, topic, deleted_at FROM objects WHERE table_name = ? AND key = ?"
_PUT = (
    "INSERT INTO objects (table_name, key, topic, version, deleted_at, value) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (table_name, key) DO UPDATE "
    "SET topic = excluded.topic, version = excluded.version, deleted_at = excluded.deleted_at, value = excluded.value"
)
_CREATE = f"{_PUT} WHERE deleted_at IS NOT NULL"
_APPEND = (
    "INSERT INTO changes (revision, action, table_name, key, topic, left_topic, since, value) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def record(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], now: float) -> list[int]:
    """Write objects and feed; returns the revisions.  ``now`` is the time of day.

    Raises what refuses one of the writes, and then has changed nothing; and sqlite3.Error.
    """
    revisions = next_revisions(schema.newest(connection), len(writes))
    if _create_all(connection, writes, revisions):
        places: list[_Place] = [(write.topic, None) for write in writes]
    else:
        places = [_place(connection, writes, position) for position in range(len(writes))]
        _put_all(connection, writes, revisions, places, now)
    rows = [
        (revision, write.action, write.table, write.key, *place, now if write.with_outbox else None, write.value)
        for write, revision, place in zip(writes, revisions, places, strict=True)
    ]
    if len(rows) == 1:  # `executemany` takes its time to begin
        connection.execute(_APPEND, rows[0])
    else:
        connection.executemany(_APPEND, rows)
    return revisions


def _create_all(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], revisions: Sequence[int]) -> bool:
    """Create the objects.  False when that is not what is asked for or one of them exists: nothing has changed."""
    if any(write.action != "create" for write in writes):
        return False
    rows = [
        (write.table, write.key, write.topic, revision, None, write.value)
        for write, revision in zip(writes, revisions, strict=True)
    ]
    if len(rows) == 1:
        return connection.execute(_CREATE, rows[0]).rowcount == 1
    connection.execute("SAVEPOINT creation")
    is_done = connection.executemany(_CREATE, rows).rowcount == len(rows)
    if not is_done:
        connection.execute("ROLLBACK TO creation")
    connection.execute("RELEASE creation")
    return is_done


def _place(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], position: int) -> _Place:
    """Where the object that is about to be written will be, and where it leaves.  Raises what refuses the write."""
    write = writes[position]
    found = connection.execute(_LOOK, (write.table, write.key)).fetchone()
    version, old_topic, deleted_at = (None, None, None) if found is None else found
    refusal = find_refusal(write, version, is_alive=found is not None and deleted_at is None)
    if refusal is not None:
        raise refusal_error(writes, position, refusal, version)
    topic = old_topic if write.topic is None else write.topic
    return topic, old_topic if write.action == "set" and old_topic != topic else None


def _put_all(
    connection: sqlite3.Connection,
    writes: Sequence[CheckedWrite],
    revisions: Sequence[int],
    places: Sequence[_Place],
    now: float,
) -> None:
    connection.executemany(
        _PUT,
        [
            (write.table, write.key, topic, revision, now if write.action == "delete" else None, write.value)
            for write, revision, (topic, _) in zip(writes, revisions, places, strict=True)
        ],
    )
