"""Reading the hot part of a log: frames by offset, by stream and by time, and where everything stands."""

from __future__ import annotations

import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping

from drivers.log.sqlite.appending import decode_ranges
from drivers.log.sqlite.schema import offset_of, row_id
from durable_log.checksums import damaged, is_sound, pack_numbers
from durable_log.log_api import ShardState, StoredFrame, StreamState
from durable_log.segmented import HotRead, take

_FRAME = "id, count, skipped, appended_ns, stream, first, checksum, frame"
_Row = tuple[int, int, int, int, int, int, int, bytes]
_STATE = 'SELECT shard, start, sealed, "end", bytes FROM shards'


def states(connection: sqlite3.Connection) -> list[ShardState]:
    return [ShardState(*row) for row in connection.execute(f"{_STATE} ORDER BY shard")]


def state(connection: sqlite3.Connection, shard: int) -> ShardState:
    return ShardState(*connection.execute(f"{_STATE} WHERE shard = ?", (shard,)).fetchone())


def has_grown(connection: sqlite3.Connection, ends: Mapping[int, int]) -> bool:
    rows = connection.execute('SELECT shard, "end" FROM shards')
    return any(end > ends[shard] for shard, end in rows.fetchall() if shard in ends)


def streams(connection: sqlite3.Connection, shard: int) -> list[StreamState]:
    rows = connection.execute("SELECT guid, topic, last, missing FROM streams WHERE shard = ? ORDER BY id", (shard,))
    return [StreamState(guid, topic, last, decode_ranges(missing)) for guid, topic, last, missing in rows]


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
        stored = _stored(connection, found, connection.execute(query, span))
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
    rows = connection.execute(
        f"SELECT {_FRAME} FROM frames WHERE stream = ?1 AND first <= ?3 AND first >= "
        "coalesce((SELECT max(first) FROM frames WHERE stream = ?1 AND first <= ?2), 0) AND first + count > ?2 "
        "ORDER BY first",
        (stream, first, last),
    )
    return take(
        _stored(connection, state(connection, shard), rows), offset=0, events_max=sys.maxsize, bytes_max=bytes_max
    )


def find(connection: sqlite3.Connection, shard: int, appended_ns: int) -> int:
    """By bisection: times never fall within a shard."""
    found = state(connection, shard)
    low, high = max(found.sealed, found.start), found.end
    while low < high:
        middle = (low + high) // 2
        row, count, when = connection.execute(
            "SELECT id, count, appended_ns FROM frames WHERE id <= ? ORDER BY id DESC LIMIT 1",
            (row_id(shard, middle),),
        ).fetchone()
        if when >= appended_ns:
            high = offset_of(row)
        else:
            low = offset_of(row) + count
    return low


def _stored(connection: sqlite3.Connection, found: ShardState, rows: Iterable[_Row]) -> Iterator[StoredFrame]:
    """Raises LogCorrupt when it comes to a frame that is damaged."""
    shard, beginning = found.shard, row_id(found.shard, 0)
    for row, count, skipped, appended_ns, stream, first, checksum, frame in rows:
        if not is_sound(checksum, frame, row, count, skipped, appended_ns, stream, first):
            (behind,) = connection.execute("SELECT min(id) FROM frames WHERE id > ?", (row,)).fetchone()
            end = found.end if behind is None or behind >= row_id(shard + 1, 0) else offset_of(behind)
            raise damaged(shard, row - beginning, end)
        yield StoredFrame(shard, row - beginning, count, skipped, appended_ns, frame)
