"""The file: where the URL says it is, how it is made, what is in it, and how a foreign one is told.

``changes`` is the feed; AUTOINCREMENT never gives a revision twice, also after the newest changes are compacted away.
``outbox`` is a table of its own and not a column, because clearing a column would write the value again.  Its rows are
runs of revisions, one for a transaction, and not single ones, because every row is paid for by who commits.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
import stat
import urllib.parse
from urllib.parse import SplitResult

from nb_api.errors import DbUnavailable
from pubsub_api.errors import InvalidConfig

_APPLICATION_ID = 0x48656C69  # "Heli", where file(1) and we look for it
_SCHEMA_VERSION = 2

_SCHEMA = (
    """CREATE TABLE objects (
        table_name TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL, version INTEGER NOT NULL,
        deleted_at REAL,  -- NULL for an object, seconds since 1970 for a tombstone
        value BLOB,
        UNIQUE (table_name, key))""",
    "CREATE INDEX objects_by_topic ON objects (topic)",
    "CREATE INDEX tombstones ON objects (deleted_at) WHERE deleted_at IS NOT NULL",
    """CREATE TABLE changes (
        revision INTEGER PRIMARY KEY AUTOINCREMENT,
        action TEXT NOT NULL, table_name TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL, left_topic TEXT,
        value BLOB)""",
    "CREATE TABLE outbox (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, since REAL NOT NULL)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE feed (compacted INTEGER NOT NULL)",
    "INSERT INTO feed VALUES (0)",
    # The row that AUTOINCREMENT keeps; with it there from the start, the newest revision is one look-up.
    "INSERT INTO sqlite_sequence (name, seq) VALUES ('changes', 0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)


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

    Raises InvalidConfig when that can never work, and DbUnavailable.
    """
    if not path.parent.is_dir():
        raise InvalidConfig(f"the directory of the database {path} does not exist: make {path.parent}")
    if path.is_dir():
        raise InvalidConfig(f"the database {path} is a directory")
    try:
        # Not with open(): to close any descriptor of a file releases all locks that this process has on it, and another
        # thread may be using the file already.
        os.mknod(path, stat.S_IFREG | 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise DbUnavailable(f"the database {path} cannot be made: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise InvalidConfig(f"the directory {path.parent} cannot be written: SQLite keeps its log beside the database")


def claim(connection: sqlite3.Connection, path: pathlib.Path, *, application_id: int, version: int, what: str) -> bool:
    """Begin a transaction in a file that is ours, or nobody's yet: then True, and it is to be filled.

    ``what`` says what it should be.  Raises InvalidConfig for somebody else's file, and sqlite3.Error.
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
    return not tables


def make_schema(connection: sqlite3.Connection, path: pathlib.Path) -> None:
    """Make the tables when they are missing.  Raises InvalidConfig for somebody else's file, and sqlite3.Error."""
    is_new = claim(
        connection, path, application_id=_APPLICATION_ID, version=_SCHEMA_VERSION, what="a database of objects"
    )
    if is_new:
        for statement in _SCHEMA:
            connection.execute(statement)
    connection.execute("COMMIT")
