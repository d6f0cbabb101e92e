"""What is in the file, how it is made, and how a foreign one is told.

A frame's row has the shard and the offset of its first event in one number, so that a shard's frames lie one after the
other in the table itself and finding an offset needs no index.
"""

from __future__ import annotations

import pathlib
import sqlite3

from drivers.db.sqlite.schema import claim
from durable_log.checks import OFFSET_MAX
from durable_log.config import SHARDS_DEFAULT
from pubsub_api.errors import InvalidConfig

_APPLICATION_ID = 0x48654C67  # "HeLg", where file(1) and we look for it
_SCHEMA_VERSION = 1
_OFFSETS = OFFSET_MAX + 1

_SCHEMA = (
    "CREATE TABLE log (shards INTEGER NOT NULL, record_version INTEGER NOT NULL)",
    # Offsets below "sealed" are in segments, those from there to "end" in frames.
    """CREATE TABLE shards (
        shard INTEGER PRIMARY KEY, start INTEGER NOT NULL, sealed INTEGER NOT NULL, "end" INTEGER NOT NULL,
        bytes INTEGER NOT NULL, appended_ns INTEGER NOT NULL)""",
    """CREATE TABLE frames (
        id INTEGER PRIMARY KEY,  -- shard and offset
        count INTEGER NOT NULL, skipped INTEGER NOT NULL, appended_ns INTEGER NOT NULL,
        stream INTEGER NOT NULL, first INTEGER NOT NULL,  -- number of the first event that counts
        frame BLOB NOT NULL)""",
    "CREATE INDEX frames_by_stream ON frames (stream, first)",
    """CREATE TABLE streams (
        id INTEGER PRIMARY KEY, shard INTEGER NOT NULL, guid BLOB NOT NULL, topic TEXT NOT NULL,
        last INTEGER NOT NULL, missing BLOB NOT NULL, appended_ns INTEGER NOT NULL, UNIQUE (guid, topic))""",
    "CREATE INDEX streams_by_shard ON streams (shard)",
    """CREATE TABLE segments (
        shard INTEGER NOT NULL, first INTEGER NOT NULL, entry TEXT NOT NULL,
        PRIMARY KEY (shard, first)) WITHOUT ROWID""",
    "CREATE TABLE records (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)


def row_id(shard: int, offset: int) -> int:
    """The number under which the frame that begins at an offset is stored."""
    return shard * _OFFSETS + offset


def offset_of(row: int) -> int:
    return row % _OFFSETS


def make_schema(connection: sqlite3.Connection, path: pathlib.Path, shards: int | None) -> int:
    """Make the tables when they are missing; returns how many shards the log has.

    Raises InvalidConfig for somebody else's file and for another number of shards, and sqlite3.Error.
    """
    if not claim(connection, path, application_id=_APPLICATION_ID, version=_SCHEMA_VERSION, what="a log"):
        _fill(connection, shards or SHARDS_DEFAULT)
    (found,) = connection.execute("SELECT shards FROM log").fetchone()
    if shards not in (None, found):
        raise InvalidConfig(f"the log {path} has {found} shards, not {shards} as [log] shards says: that is fixed")
    connection.execute("COMMIT")
    return int(found)


def _fill(connection: sqlite3.Connection, shards: int) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO log VALUES (?, 0)", (shards,))
    connection.executemany("INSERT INTO shards VALUES (?, 0, 0, 0, 0, 0)", [(shard,) for shard in range(shards)])
