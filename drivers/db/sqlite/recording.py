"""From writes to rows: one transaction of the contract, in the SQLite transaction that the caller has begun.

Others may share that one, so what is refused must leave nothing behind.  Objects that are created are written at once,
and SQLite says how many of them were not there; only when that is not all of them they are looked at one by one, as
everything else is before it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from heliograph_drivers.db.sqlite import schema
from nb_api.core.writes import CheckedWrite, find_refusal, plan_write, refusal_error
from nb_api.db_api import Written
from nb_api.revisions import next_revisions

_LOOK = "SELECT version, topic, deleted_at, value = ? FROM objects WHERE table_name = ? AND key = ?"
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


def record(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], now: float) -> list[Written]:
    """Write objects and feed; returns what became of the writes.  ``now`` is the time of day.

    Raises what refuses one of the writes, and then has changed nothing; and sqlite3.Error.
    """
    if any(write.action != "create" for write in writes):
        return _record_each(connection, writes, now)
    revisions = next_revisions(schema.newest(connection), len(writes))
    if not _create_all(connection, writes, revisions):
        return _record_each(connection, writes, now)  # one of them exists: it says which
    written = [
        Written(revision, "create", write.topic or "") for write, revision in zip(writes, revisions, strict=True)
    ]
    _append(connection, writes, written, now)
    return written


def _record_each(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], now: float) -> list[Written]:
    plans = [_plan(connection, writes, position) for position in range(len(writes))]
    # Numbers have no gaps here, so what writes nothing gets none.
    count = sum(plan.action is not None for plan in plans)
    if not count:
        return plans
    revisions = iter(next_revisions(schema.newest(connection), count))
    written: list[Written] = []
    objects: list[tuple[object, ...]] = []
    for write, plan in zip(writes, plans, strict=True):
        if plan.action is None:
            written.append(plan)
            continue
        revision, deleted_at = next(revisions), now if plan.action == "delete" else None
        written.append(Written(revision, plan.action, plan.topic, plan.left_topic))
        objects.append((write.table, write.key, plan.topic, revision, deleted_at, write.value))
    _execute(connection, _PUT, objects)
    _append(connection, writes, written, now)
    return written


def _create_all(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], revisions: Sequence[int]) -> bool:
    """Create the objects.  False when one of them exists: nothing has changed."""
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


def _plan(connection: sqlite3.Connection, writes: Sequence[CheckedWrite], position: int) -> Written:
    """What the write will do to the object that is there.  Raises what refuses it."""
    write = writes[position]
    found = connection.execute(_LOOK, (write.value, write.table, write.key)).fetchone()
    version, old_topic, deleted_at, is_equal = (None, None, None, False) if found is None else found
    is_alive = found is not None and deleted_at is None
    refusal = find_refusal(write, version, is_alive=is_alive)
    if refusal is not None:
        raise refusal_error(writes, position, refusal, version)
    return plan_write(write, version, old_topic, is_alive=is_alive, is_equal=bool(is_equal))


def _append(
    connection: sqlite3.Connection, writes: Sequence[CheckedWrite], written: Sequence[Written], now: float
) -> None:
    """Write the feed, which is the outbox too."""
    rows = [
        (one.version, one.action, write.table, write.key, one.topic, one.left_topic,
         now if write.with_outbox else None, write.value)
        for write, one in zip(writes, written, strict=True)
        if one.action is not None
    ]  # fmt: skip
    _execute(connection, _APPEND, rows)


def _execute(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
    if len(rows) == 1:  # `executemany` takes its time to begin
        connection.execute(sql, rows[0])
    else:
        connection.executemany(sql, rows)
