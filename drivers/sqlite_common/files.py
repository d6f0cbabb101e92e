"""The file: where the URL says it is, how it is made, and how a foreign one is told."""

from __future__ import annotations

import os
import pathlib
import sqlite3
import urllib.parse
from urllib.parse import SplitResult

from nb_api.errors import DbUnavailable
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime import files


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
        raise InvalidConfig(f"the directory of {path} does not exist: make {path.parent}, or give another URL")
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
    """Begin a transaction in a file that is ours, or still empty; False when it is to be filled.

    Where nothing is to be written, another process may hold the lock, or the disk be full.
    ``what`` says what the file should be.  Raises InvalidConfig for another program's file, and sqlite3.Error.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise InvalidConfig(f"{path}: this file system cannot hold a write-ahead log (journal mode {mode!r})")
    connection.execute("BEGIN" if is_ours(connection, application_id, version) else "BEGIN IMMEDIATE")
    (found_application,) = connection.execute("PRAGMA application_id").fetchone()
    (found_version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if found_application == application_id and found_version != version:
        raise InvalidConfig(f"{path} has schema {found_version}; this release knows only {version}")
    if found_application != application_id and tables:
        raise InvalidConfig(f"{path} is the SQLite database of another program, not {what}")
    return bool(tables)


def is_ours(connection: sqlite3.Connection, application_id: int, version: int) -> bool:
    """Whether the file is complete, and of this release.  Only reads."""
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return found == [application_id, version]
