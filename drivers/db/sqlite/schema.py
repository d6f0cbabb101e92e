"""What is in the file, and how it is made.

``changes`` is the feed, and with ``published`` the outbox (`heliograph_drivers.db.sqlite.outbox`).  A commit writes
into the trees of ``objects`` and ``changes`` and into no other: every further one is a page more to write and to sync.
So the counter of revisions is not stored either: the newest is the last of the feed, or where it was compacted to, if
nothing is left.
"""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Iterable

from heliograph_drivers.sqlite_common.files import claim
from nb_api.revisions import number_of

_APPLICATION_ID = 0x48656C69  # "Heli", where file(1) and we look for it
_SCHEMA_VERSION = 4

_SCHEMA = (
    """CREATE TABLE objects (
        table_name TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL, version INTEGER NOT NULL,
        deleted_at REAL,  -- NULL for an object, seconds since 1970 for a tombstone
        value BLOB,
        UNIQUE (table_name, key))""",
    "CREATE INDEX objects_by_topic ON objects (topic)",
    "CREATE INDEX tombstones ON objects (deleted_at) WHERE deleted_at IS NOT NULL",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE feed (compacted INTEGER NOT NULL)",
    "INSERT INTO feed VALUES (0)",
    """CREATE TABLE changes (
        revision INTEGER PRIMARY KEY,
        action TEXT NOT NULL, table_name TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL, left_topic TEXT,
        since REAL,  -- seconds since 1970 when it shall be published, else NULL
        value BLOB)""",
    # Runs of revisions that need not be published any more; the first begins at 0.
    "CREATE TABLE published (first INTEGER PRIMARY KEY, last INTEGER NOT NULL)",
    "INSERT INTO published VALUES (0, 0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
REPORTS = "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"
"""Made by the first report: older releases do not mind it, and their files lack it."""
_BETWEEN = "SELECT revision FROM changes WHERE revision BETWEEN ? AND ?"
_DENSE = 4
"""Where at least each fourth revision is asked for, all are read at once."""
_NEWEST = "SELECT max(compacted, coalesce((SELECT max(revision) FROM changes), 0)) FROM feed"


def make_schema(connection: sqlite3.Connection, path: pathlib.Path) -> None:
    """Make the tables when they are missing.  Raises InvalidConfig for a file that is not ours or has another schema,
    and sqlite3.Error."""
    what = "a database of objects"
    if not claim(connection, path, application_id=_APPLICATION_ID, version=_SCHEMA_VERSION, what=what):
        for statement in _SCHEMA:
            connection.execute(statement)
    connection.execute("COMMIT")


def newest(connection: sqlite3.Connection) -> int:
    """The newest revision, 0 when there is none."""
    (revision,) = connection.execute(_NEWEST).fetchone()
    return int(revision)


def known(connection: sqlite3.Connection, revisions: Iterable[int]) -> set[int]:
    """Those of the revisions that the feed has."""
    wanted = set(revisions)
    first, last = min(wanted, default=0), max(wanted, default=0)
    if number_of(last) - number_of(first) < _DENSE * len(wanted):  # no two changes have one number
        return wanted.intersection(revision for (revision,) in connection.execute(_BETWEEN, (first, last)))
    return {one for one in wanted if connection.execute(_BETWEEN, (one, one)).fetchone() is not None}
