"""Compare-and-set records: small values with versions that are never used twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from durable_log.core.checks import Write
from durable_log.errors import RecordConflict
from durable_log.log_api import Record

_BEYOND = "\U0010ffff"  # sorts behind every name that goes on from a prefix


def get(connection: sqlite3.Connection, name: str) -> Record | None:
    row = connection.execute("SELECT name, value, version FROM records WHERE name = ?", (name,)).fetchone()
    return None if row is None else Record(*row)


def starting_with(connection: sqlite3.Connection, prefix: str) -> list[Record]:
    sql = "SELECT name, value, version FROM records WHERE name >= ? AND name < ? ORDER BY name"
    return [Record(*row) for row in connection.execute(sql, (prefix, prefix + _BEYOND))]


def put(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[int]:
    """All or nothing, in the transaction that is open: checks everything before it writes anything."""
    for name, _, expected in writes:
        found = get(connection, name)
        version = 0 if found is None else found.version
        if expected not in (None, version):
            raise RecordConflict(f"record {name!r} has version {version}, not {expected} as expected")
    (newest,) = connection.execute("SELECT record_version FROM log").fetchone()
    versions = list(range(newest + 1, newest + 1 + len(writes)))
    for (name, value, _), version in zip(writes, versions, strict=True):
        if value is None:
            connection.execute("DELETE FROM records WHERE name = ?", (name,))
        else:
            connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (name, value, version))
    connection.execute("UPDATE log SET record_version = ?", (versions[-1],))
    return versions
