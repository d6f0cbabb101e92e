"""Reading the hot part of a log: frames by offset, by stream and by time, and where everything stands."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

from durable_log.core import checks
from durable_log.core.checksums import damaged
from durable_log.core.positions import stream_key
from durable_log.errors import LogCorrupt
from durable_log.log_api import ShardState, StoredFrame
from durable_log.storage.frame_rows import (
    COLUMNS,
    Behind,
    end_of,
    find_time,
    offset_of,
    row_id,
    shard_of_row,
    stored_frames,
    take_sound,
)
from durable_log.storage.segmented import HotRead, take
from heliograph_drivers.log.postgres.store import PostgresLogStore, Statement
from heliograph_drivers.postgres_common.pool import Row

_STATE = 'SELECT shard, start, sealed, "end", bytes FROM @shards'
# From the frame that covers the place on, up to the first that begins behind the last event that is wanted, or behind
# as many bytes.  How large a frame is, is told without reading it.
_FRAMES = f"""SELECT {COLUMNS} FROM (
    SELECT {COLUMNS}, sum(octet_length(frame)) OVER (ORDER BY id) - octet_length(frame) AS bytes_before
    FROM @frames
    WHERE id >= coalesce((SELECT max(id) FROM @frames WHERE id BETWEEN %(beginning)s AND %(place)s), %(place)s)
        AND id <= coalesce((SELECT min(id) FROM @frames WHERE id >= %(stop)s AND id < %(limit)s), %(limit)s)
        AND id < (SELECT %(beginning)s + "end" FROM @shards WHERE shard = %(shard)s)
        AND (SELECT greatest(start, sealed) FROM @shards WHERE shard = %(shard)s) <= %(offset)s
) AS found WHERE bytes_before <= %(bytes_max)s ORDER BY id"""
_STREAM_FRAMES = f"""SELECT {COLUMNS} FROM (
    SELECT f.*, sum(octet_length(frame)) OVER (ORDER BY first) - octet_length(frame) AS bytes_before
    FROM @frames f WHERE stream = %(stream)s AND first <= %(last)s AND first + count > %(first)s AND first >=
        coalesce((SELECT max(first) FROM @frames WHERE stream = %(stream)s AND first <= %(first)s), 0)
) AS found WHERE bytes_before <= %(bytes_max)s ORDER BY first"""
_BEHIND = "SELECT min(id) FROM @frames WHERE id > %s AND id < %s"
_LAST_BETWEEN = f"SELECT {COLUMNS} FROM @frames WHERE id BETWEEN %s AND %s ORDER BY id DESC LIMIT 1"

Execute = Callable[[Statement], list[Row]]


def states(store: PostgresLogStore) -> list[ShardState]:
    [rows] = store.read(Statement(f"{_STATE} ORDER BY shard"))
    return [ShardState(*row) for row in rows]


def positions(store: PostgresLogStore, shard: int) -> list[tuple[bytes, bytes]]:
    [rows] = store.read(Statement("SELECT key, position FROM @streams WHERE shard = %s ORDER BY id", (shard,)))
    return [(bytes(key), bytes(position)) for key, position in rows]


def stored_end(store: PostgresLogStore, shard: int) -> int:
    [rows] = store.read(Statement(_LAST_BETWEEN, (row_id(shard, 0), row_id(shard + 1, 0) - 1)))
    return end_of(rows[0]) if rows else 0


def read(store: PostgresLogStore, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
    """The shard's state, and frames when the offset is hot."""
    beginning, limit = row_id(shard, 0), row_id(shard + 1, 0)
    place = beginning + offset
    parameters = {
        "shard": shard, "offset": offset, "beginning": beginning, "place": place, "limit": limit,
        "stop": min(place + events_max, limit), "bytes_max": bytes_max,
    }  # fmt: skip
    one_state = Statement(f"{_STATE} WHERE shard = %s", (shard,))
    try:
        [states, rows] = store.read(one_state, Statement(_FRAMES, parameters))
    except LogCorrupt:
        return _read_one(store, shard, offset)
    if not states:
        raise checks.lost_shard(shard)
    found = ShardState(*states[0])
    frames = take_sound(rows, shard, offset, events_max=events_max, bytes_max=bytes_max)
    if not frames and max(found.sealed, found.start) <= offset < found.end:
        # Look closer: this raises, and knows what is wrong.
        stored = stored_frames(shard, rows, _behind(store, found))
        frames = take(stored, offset=offset, events_max=events_max, bytes_max=bytes_max, state=found)
    return HotRead(found, frames)


def _read_one(store: PostgresLogStore, shard: int, offset: int) -> HotRead:
    """One frame alone, when PostgreSQL cannot read all that were wanted: what lies before the damage can be read."""
    place = row_id(shard, offset)
    [[row]] = store.read(Statement(f"{_STATE} WHERE shard = %s", (shard,)))
    found = ShardState(*row)
    behind = _behind(store, found)
    try:
        [rows] = store.read(Statement(_LAST_BETWEEN, (row_id(shard, 0), place)))
    except LogCorrupt as error:
        try:
            end = behind(place)
        except LogCorrupt:  # the next one is not readable either
            end = offset + 1
        raise damaged(shard, offset, end) from error
    stored = stored_frames(shard, rows, behind)
    return HotRead(found, take(stored, offset=offset, events_max=1, bytes_max=1, state=found))


def read_stream(
    store: PostgresLogStore, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int
) -> list[StoredFrame]:
    find = Statement("SELECT id FROM @streams WHERE key = %b", (stream_key(guid, topic),))
    limits = {"first": first, "last": last, "bytes_max": bytes_max}

    def look(execute: Execute) -> tuple[dict[int, ShardState], Sequence[Row]]:
        found = execute(find)
        rows = execute(Statement(_STREAM_FRAMES, {**limits, "stream": found[0][0]})) if found else []
        shards = sorted(set(map(shard_of_row, rows)))
        states = execute(Statement(f"{_STATE} WHERE shard = ANY(%s::integer[])", (shards,))) if shards else []
        return {row[0]: ShardState(*row) for row in states}, rows

    states, rows = store.look(look)
    # Of one shard, unless the log has got more of them lately.
    stored = (
        one for shard, some in itertools.groupby(rows, key=shard_of_row)
        for one in stored_frames(shard, some, _behind(store, states[shard]))
    )  # fmt: skip
    return take(stored, offset=0, events_max=sys.maxsize, bytes_max=bytes_max)


def find(store: PostgresLogStore, shard: int, appended_ns: int) -> int:
    def look(execute: Execute) -> int:
        [row] = execute(Statement(f"{_STATE} WHERE shard = %s", (shard,)))
        found = ShardState(*row)

        def behind(place: int) -> int:
            return _next_offset(found, execute(_behind_statement(shard, place)))

        return find_time(
            found, appended_ns, lambda first, last: execute(Statement(_LAST_BETWEEN, (first, last))), behind
        )

    return store.look(look)


def _behind(store: PostgresLogStore, found: ShardState) -> Behind:
    return lambda place: _next_offset(found, store.read(_behind_statement(found.shard, place))[0])


def _behind_statement(shard: int, place: int) -> Statement:
    return Statement(_BEHIND, (place, row_id(shard + 1, 0)))


def _next_offset(found: ShardState, rows: Sequence[Row]) -> int:
    [(behind,)] = rows
    return found.end if behind is None else offset_of(behind)
