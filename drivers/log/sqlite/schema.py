"""What is in the file, how it is made, and how a foreign one is told.

Rows of frames are as `durable_log.storage.frame_rows` says.

A file that is there already is only read when it is opened: a reader of a log does not wait for its writers.
"""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Callable

from durable_log.storage import shard_map
from durable_log.storage.identity import Lineage, new_identity
from durable_log.storage.row_log import LogHeader
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.log.sqlite import records
from heliograph_drivers.sqlite_common import files
from heliograph_drivers.sqlite_common.files import claim

_APPLICATION_ID = 0x48654C67  # "HeLg", where file(1) and we look for it
_SCHEMA_VERSION = 4
_PAGE_BYTES = 8192
"""Of a file that is made now.  Frames of a flood have some kilobytes, and appending or reading them takes a tenth to a
third less time than with SQLite's 4096 bytes.  An append of a few bytes takes more, and writes twice as much."""
_PROBLEMS_MAX = 20
_FREE_PAGES_KEPT = 128
_RELEASE_PAGES = 1024

_SCHEMA = (
    # Ancestors: identities that the log had before it was repaired, with blanks between them.
    # Directory_token: tells this file from its copies, see `durable_log.segments.directory`.
    """CREATE TABLE log (
        shards INTEGER NOT NULL, record_version INTEGER NOT NULL, identity TEXT NOT NULL, ancestors TEXT NOT NULL,
        directory_token TEXT NOT NULL)""",
    # Offsets below "sealed" are in segments, those from there to "end" in frames.
    """CREATE TABLE shards (
        shard INTEGER PRIMARY KEY, start INTEGER NOT NULL, sealed INTEGER NOT NULL, "end" INTEGER NOT NULL,
        bytes INTEGER NOT NULL, appended_ns INTEGER NOT NULL)""",
    """CREATE TABLE frames (
        id INTEGER PRIMARY KEY,  -- shard and offset
        count INTEGER NOT NULL, skipped INTEGER NOT NULL, appended_ns INTEGER NOT NULL,
        stream INTEGER NOT NULL, first INTEGER NOT NULL,  -- number of the first event that counts
        checksum INTEGER NOT NULL,  -- of all the others
        frame BLOB NOT NULL)""",
    "CREATE INDEX frames_by_stream ON frames (stream, first)",
    """CREATE TABLE streams (
        id INTEGER PRIMARY KEY, shard INTEGER NOT NULL, guid BLOB NOT NULL, topic TEXT NOT NULL,
        position BLOB NOT NULL, appended_ns INTEGER NOT NULL, UNIQUE (guid, topic))""",
    "CREATE INDEX streams_by_shard ON streams (shard)",
    """CREATE TABLE segments (
        shard INTEGER NOT NULL, first INTEGER NOT NULL, entry TEXT NOT NULL,
        PRIMARY KEY (shard, first)) WITHOUT ROWID""",
    "CREATE TABLE records (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)


def make_schema(connection: sqlite3.Connection, path: pathlib.Path, new_shards: Callable[[], int]) -> LogHeader:
    """Make the tables when they are missing, for ``new_shards``; only then it writes.

    Raises pubsub_api.errors.InvalidConfig for another program's file, and sqlite3.Error.
    """
    if not is_ours(connection):
        # Both are possible before anything else is in the file only.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = incremental")
        if not claim(connection, path, application_id=_APPLICATION_ID, version=_SCHEMA_VERSION, what="a log"):
            _fill(connection, new_shards())
        connection.execute("COMMIT")
    return read_log(connection)


def read_log(connection: sqlite3.Connection) -> LogHeader:
    shards, identity, ancestors = connection.execute("SELECT shards, identity, ancestors FROM log").fetchone()
    return LogHeader(int(shards), Lineage(identity, frozenset(ancestors.split())))


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether the file is a complete log of this release.  Only reads."""
    return files.is_ours(connection, _APPLICATION_ID, _SCHEMA_VERSION)


def add_shards(connection: sqlite3.Connection, found: ShardMap, shards: int) -> ShardMap | None:
    """In the transaction that is open.  None, and nothing happens, when there are other shards than were found."""
    if read_log(connection).shards != found.shards:
        return None
    rows = connection.execute('SELECT "end", appended_ns FROM shards ORDER BY shard').fetchall()
    grown = found.grown(shards, [end for end, _ in rows])
    # Times do not fall from a shard to those that take topics over from it.
    connection.executemany(
        "INSERT INTO shards VALUES (?, 0, 0, 0, 0, ?)",
        [(shard, rows[shard % found.shards][1]) for shard in range(found.shards, shards)],
    )
    connection.execute("UPDATE log SET shards = ?", (shards,))
    records.put(connection, [(shard_map.RECORD, shard_map.encode(grown), None)])
    return grown


def _fill(connection: sqlite3.Connection, shards: int) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO log VALUES (?, 0, ?, '', '')", (shards, new_identity()))
    connection.executemany("INSERT INTO shards VALUES (?, 0, 0, 0, 0, 0)", [(shard,) for shard in range(shards)])


def check(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file, a sentence each."""
    found = [said for (said,) in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})")]
    return [] if found == ["ok"] else [f"the file of the log: {said}" for said in found]


def used_bytes(connection: sqlite3.Connection) -> int:
    """How much of the file holds something."""
    (pages,), (free,), (size,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def release(connection: sqlite3.Connection) -> bool:
    """Give free pages back, a bounded number at a time, because others wait meanwhile; True when there are more.

    A tenth of the file stays, to be used again.
    """
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if free <= max(_FREE_PAGES_KEPT, pages // 10):
        return False
    connection.execute(f"PRAGMA incremental_vacuum({_RELEASE_PAGES})").fetchall()
    (left,) = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(left < free)
