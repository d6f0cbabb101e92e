"""Reading the hot part of a log: frames by offset, by stream and by time, and where everything stands."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
import sys
from collections.abc import Mapping

from durable_log.core import checks
from durable_log.log_api import ShardState, StoredFrame
from durable_log.storage.frame_rows import (
    COLUMNS,
    FrameRow,
    end_of,
    find_time,
    offset_of,
    row_id,
    shard_of_row,
    stored_frames,
    take_sound,
)
from durable_log.storage.segmented import HotRead, take

_closing = contextlib.closing[sqlite3.Cursor]
"""A query that is not read to its end keeps its connection at what was there when it began.  What is raised meanwhile
keeps the query, as long as its traceback is kept."""
_STATE = 'SELECT shard, start, sealed, "end", bytes FROM shards'


def states(connection: sqlite3.Connection) -> list[ShardState]:
    return [ShardState(*row) for row in connection.execute(f"{_STATE} ORDER BY shard")]


def state(connection: sqlite3.Connection, shard: int) -> ShardState:
    found = connection.execute(f"{_STATE} WHERE shard = ?", (shard,)).fetchone()
    if found is None:
        raise checks.lost_shard(shard)
    return ShardState(*found)


def has_grown(connection: sqlite3.Connection, ends: Mapping[int, int]) -> bool:
    rows = connection.execute('SELECT shard, "end" FROM shards')
    return any(end > ends[shard] for shard, end in rows.fetchall() if shard in ends)


def positions(connection: sqlite3.Connection, shard: int) -> list[tuple[bytes, bytes]]:
    # Of a damaged row nothing is certain, not even the types.
    return connection.execute(
        "SELECT CAST(guid || topic AS BLOB), CAST(position AS BLOB) FROM streams WHERE shard = ? ORDER BY id", (shard,)
    ).fetchall()


def stored_end(connection: sqlite3.Connection, shard: int) -> int:
    row = connection.execute(
        f"SELECT {COLUMNS} FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
        (row_id(shard, 0), row_id(shard + 1, 0) - 1),
    ).fetchone()
    return 0 if row is None else end_of(row)


def read(connection: sqlite3.Connection, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
    """The shard's state, and frames when the offset is hot.  Call it in one transaction."""
    found = state(connection, shard)
    if not max(found.sealed, found.start) <= offset < found.end:
        return HotRead(found, [])
    query = (
        f"SELECT {COLUMNS} FROM frames "
        "WHERE id >= coalesce((SELECT max(id) FROM frames WHERE id BETWEEN ? AND ?), ?) AND id < ? ORDER BY id"
    )
    begin = row_id(shard, offset)
    span = (row_id(shard, 0), begin, begin, row_id(shard, found.end))
    rows = connection.execute(query, span)
    frames = take_sound(rows, shard, offset, events_max=events_max, bytes_max=bytes_max)
    if not frames:  # look closer: this raises, and knows what is wrong
        with _closing(connection.execute(query, span)) as rows:
            stored = stored_frames(shard, rows, functools.partial(_behind, connection, found))
            frames = take(stored, offset=offset, events_max=events_max, bytes_max=bytes_max, state=found)
    return HotRead(found, frames)


def read_stream(
    connection: sqlite3.Connection, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int
) -> list[StoredFrame]:
    found = connection.execute("SELECT id FROM streams WHERE guid = ? AND topic = ?", (guid, topic)).fetchone()
    if found is None:
        return []
    query = (
        f"SELECT {COLUMNS} FROM frames WHERE stream = ? AND first <= ? AND first >= "
        "coalesce((SELECT max(first) FROM frames WHERE stream = ? AND first <= ?), 0) AND first + count > ? "
        "ORDER BY first"
    )
    with _closing(connection.execute(query, (*found, last, *found, first, first))) as rows:
        # Of one shard, unless the log has got more of them lately.
        stored = (
            one for shard, some in itertools.groupby(rows, key=shard_of_row)
            for one in stored_frames(shard, some, functools.partial(_behind, connection, state(connection, shard)))
        )  # fmt: skip
        return take(stored, offset=0, events_max=sys.maxsize, bytes_max=bytes_max)


def find(connection: sqlite3.Connection, shard: int, appended_ns: int) -> int:
    def last_between(first: int, last: int) -> list[FrameRow]:
        query = f"SELECT {COLUMNS} FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
        return connection.execute(query, (first, last)).fetchall()

    found = state(connection, shard)
    return find_time(found, appended_ns, last_between, functools.partial(_behind, connection, found))


def _behind(connection: sqlite3.Connection, found: ShardState, row: int) -> int:
    """The offset of the first frame behind a row, or the end of the shard."""
    (behind,) = connection.execute("SELECT min(id) FROM frames WHERE id > ?", (row,)).fetchone()
    return found.end if behind is None or behind >= row_id(found.shard + 1, 0) else offset_of(behind)
