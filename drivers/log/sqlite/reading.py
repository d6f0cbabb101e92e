"""Reading the hot part of a log: frames by offset, by stream and by time, and where everything stands."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping

from durable_log.core.checksums import damaged, gap, is_sound, pack_numbers
from durable_log.log_api import ShardState, StoredFrame
from durable_log.storage.segmented import HotRead, take
from heliograph_drivers.log.sqlite.schema import offset_of, row_id

_FRAME = "id, count, skipped, appended_ns, stream, first, checksum, frame"
_Row = tuple[int, int, int, int, int, int, int, bytes]
_closing = contextlib.closing[sqlite3.Cursor]
"""A query that is not read to its end keeps its connection at what was there when it began.  What is raised meanwhile
keeps the query, as long as its traceback is kept."""
_STATE = 'SELECT shard, start, sealed, "end", bytes FROM shards'


def states(connection: sqlite3.Connection) -> list[ShardState]:
    return [ShardState(*row) for row in connection.execute(f"{_STATE} ORDER BY shard")]


def state(connection: sqlite3.Connection, shard: int) -> ShardState:
    return ShardState(*connection.execute(f"{_STATE} WHERE shard = ?", (shard,)).fetchone())


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
        f"SELECT {_FRAME} FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
        (row_id(shard, 0), row_id(shard + 1, 0) - 1),
    ).fetchone()
    if row is None:
        return 0
    number, count, skipped, appended_ns, stream, first, checksum, frame = row
    is_whole = is_sound(checksum, frame, number, count, skipped, appended_ns, stream, first)
    return offset_of(number) + (count if is_whole else 1)


def read(connection: sqlite3.Connection, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
    """The shard's state, and frames when the offset is hot.  Call it in one transaction."""
    found = state(connection, shard)
    if not max(found.sealed, found.start) <= offset < found.end:
        return HotRead(found, [])
    query = (
        f"SELECT {_FRAME} FROM frames "
        "WHERE id >= coalesce((SELECT max(id) FROM frames WHERE id BETWEEN ?1 AND ?2), ?2) AND id < ?3 ORDER BY id"
    )
    span = (row_id(shard, 0), row_id(shard, offset), row_id(shard, found.end))
    frames = _take_sound(connection.execute(query, span), span, shard, events_max=events_max, bytes_max=bytes_max)
    if not frames:  # look closer: this raises, and knows what is wrong
        with _closing(connection.execute(query, span)) as rows:
            stored = _stored(connection, found, rows)
            frames = take(stored, offset=offset, events_max=events_max, bytes_max=bytes_max, state=found)
    return HotRead(found, frames)


def _take_sound(
    rows: Iterable[_Row], span: tuple[int, int, int], shard: int, *, events_max: int, bytes_max: int
) -> list[StoredFrame]:
    """What `take` would find, up to the first frame that is damaged or missing.

    Nothing is called for a frame but what looks at its bytes: this is where the time goes that reading a log takes.
    """
    beginning, place, _ = span
    stop, size, taken = place + events_max, 0, list[StoredFrame]()
    crc32, pack, new, add = zlib.crc32, pack_numbers, tuple.__new__, taken.append
    try:
        for row, count, skipped, appended_ns, stream, first, checksum, frame in rows:
            if crc32(frame, crc32(pack(row, count, skipped, appended_ns, stream, first))) != checksum:
                break
            size += len(frame)
            if not row <= place < row + count or (size > bytes_max and taken):
                break
            add(new(StoredFrame, (shard, row - beginning, count, skipped, appended_ns, frame)))
            place = row + count
            if place >= stop:
                break
    except (TypeError, struct.error):  # of a damaged row nothing is certain, not even the types
        pass
    return taken


def read_stream(
    connection: sqlite3.Connection, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int
) -> list[StoredFrame]:
    found = connection.execute("SELECT id, shard FROM streams WHERE guid = ? AND topic = ?", (guid, topic)).fetchone()
    if found is None:
        return []
    stream, shard = found
    query = (
        f"SELECT {_FRAME} FROM frames WHERE stream = ?1 AND first <= ?3 AND first >= "
        "coalesce((SELECT max(first) FROM frames WHERE stream = ?1 AND first <= ?2), 0) AND first + count > ?2 "
        "ORDER BY first"
    )
    with _closing(connection.execute(query, (stream, first, last))) as rows:
        stored = _stored(connection, state(connection, shard), rows)
        return take(stored, offset=0, events_max=sys.maxsize, bytes_max=bytes_max)


def find(connection: sqlite3.Connection, shard: int, appended_ns: int) -> int:
    """By bisection: times never fall within a shard.  Raises LogCorrupt when it meets what is damaged or gone."""
    found = state(connection, shard)
    low, high = max(found.sealed, found.start), found.end
    while low < high:
        middle = (low + high) // 2
        rows = connection.execute(
            f"SELECT {_FRAME} FROM frames WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
            (row_id(shard, low), row_id(shard, middle)),
        )
        frame = next(_stored(connection, found, rows.fetchall()), None)
        if frame is None or frame.end <= middle:
            place = low if frame is None else frame.end
            raise gap(shard, place, _behind(connection, found, row_id(shard, middle)))
        if frame.appended_ns >= appended_ns:
            high = frame.offset
        else:
            low = frame.end
    return low


def _stored(connection: sqlite3.Connection, found: ShardState, rows: Iterable[_Row]) -> Iterator[StoredFrame]:
    """Raises LogCorrupt when it comes to a frame that is damaged."""
    shard, beginning = found.shard, row_id(found.shard, 0)
    for row, count, skipped, appended_ns, stream, first, checksum, frame in rows:
        if not is_sound(checksum, frame, row, count, skipped, appended_ns, stream, first):
            raise damaged(shard, row - beginning, _behind(connection, found, row))
        yield StoredFrame(shard, row - beginning, count, skipped, appended_ns, frame)


def _behind(connection: sqlite3.Connection, found: ShardState, row: int) -> int:
    """The offset of the first frame behind a row, or the end of the shard."""
    (behind,) = connection.execute("SELECT min(id) FROM frames WHERE id > ?", (row,)).fetchone()
    return found.end if behind is None or behind >= row_id(found.shard + 1, 0) else offset_of(behind)
