"""The file: where the URL says it is, how it is made, what is in it, and how a foreign one is told.

``changes`` is the feed, and with ``published`` the outbox (`drivers.db.sqlite.outbox`).  A commit writes into the trees
of ``objects`` and ``changes`` and into no other: every further one is a page more to write and to sync.  So the counter
of revisions is not stored either: the newest is the last of the feed, or where it was compacted to, if nothing is left.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
import urllib.parse
from collections.abc import Iterable
from urllib.parse import SplitResult

from nb_api.errors import DbUnavailable
from nb_api.revisions import number_of
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime import files

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
_BETWEEN = "SELECT revision FROM changes WHERE revision BETWEEN ? AND ?"
_DENSE = 4
"""Where at least each fourth revision is asked for, all are read at once."""
_NEWEST = "SELECT max(compacted, coalesce((SELECT max(revision) FROM changes), 0)) FROM feed"


def path_of(url: SplitResult) -> pathlib.Path:
    """The absolute path that the URL names.  Raises InvalidConfig."""
    path = urllib.parse.unquote(url.path)
    if url.netloc or url.query or url.fragment or not path.strip("/") or "\0" in path:
        raise InvalidConfig(
            f"the path {path!r} names no SQLite file: write sqlite:///absolute/path/file.db, with three slashes"
        )
    return pathlib.Path("/" + path.lstrip("/"))


def make_file(path: pathlib.Path) -> None:
    """Make the file when it is missing, private to the user; SQLite gives the files beside it the same mode.

    A file that is there keeps its mode: its owner may share it.  Raises InvalidConfig when that can never work,
    UnsafeFile for a symbolic link or where others could replace the file, and DbUnavailable.
    """
    if not path.parent.is_dir():
        raise InvalidConfig(f"the directory of the database {path} does not exist: make {path.parent}")
    if path.is_dir():
        raise InvalidConfig(f"the database {path} is a directory")
    try:
        files.make_private(path, may_be_shared=True)
    except OSError as error:
        raise DbUnavailable(f"the database {path} cannot be made: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise InvalidConfig(f"the directory {path.parent} cannot be written: SQLite keeps its log beside the database")


def claim(
    connection: sqlite3.Connection,
    path: pathlib.Path,
    *,
    application_id: int,
    version: int,
    what: str,
) -> bool:
    """Begin a transaction in a file that is ours, or nobody's yet; False when it is to be filled.

    ``what`` says what the file should be.  Raises InvalidConfig for somebody else's file, and sqlite3.Error.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise InvalidConfig(f"{path}: this file system cannot hold a write-ahead log (journal mode {mode!r})")
    connection.execute("BEGIN IMMEDIATE")
    (found_application,) = connection.execute("PRAGMA application_id").fetchone()
    (found_version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if found_application == application_id and found_version != version:
        raise InvalidConfig(f"{path} has schema {found_version}; this release knows only {version}")
    if found_application != application_id and tables:
        raise InvalidConfig(f"{path} is the SQLite database of another program, not {what}")
    return bool(tables)


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
