"""Appending frames, in a transaction that has locked their shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from durable_log.config import MISSING_RANGES_MAX
from durable_log.core.placing import NOWHERE, extend
from durable_log.core.positions import decode_position, encode_position, stream_key, wrong_end
from durable_log.log_api import Appended, shard_of
from durable_log.storage.frame_rows import Batch, StreamRow, place_frames, row_id, stamp
from durable_log.storage.row_log import StoredRows
from heliograph_drivers.log.postgres.store import LogWrite, PostgresLogStore, Statement

_FIND_STREAMS = "SELECT key, id, position, shard FROM @streams WHERE key = ANY(%b::bytea[])"
_NEW_STREAMS = """INSERT INTO @streams (shard, key, position)
    SELECT * FROM unnest(%s::integer[], %b::bytea[], %b::bytea[]) RETURNING key, id"""
_TAKE_OVER = "UPDATE @streams SET shard = %s WHERE id = %s"
_MOVE_STREAM = "UPDATE @streams SET position = %b, appended_ns = %s WHERE id = %s"
_LAST_ROWS = """SELECT shard, (SELECT max(id) FROM @frames WHERE id BETWEEN low AND high)
    FROM unnest(%s::integer[], %s::bigint[], %s::bigint[]) AS wanted (shard, low, high)"""
_ADD_FRAME = "INSERT INTO @frames VALUES (%s, %s, %s, %s, %s, %s, %s, %b)"
_MOVE_SHARD = 'UPDATE @shards SET "end" = %s, bytes = bytes + %s, appended_ns = %s WHERE shard = %s'

_Names = Mapping[tuple[bytes, str], tuple[int, bytes]]
"""GUID and topic of a stream -> its shard and its key."""


def append(store: PostgresLogStore, batch: Batch, shards: int) -> StoredRows | None:
    """As `RowLog.append_rows`."""
    names = _names(((shard, header.guid, header.topic) for shard, frames in batch.items() for header, _ in frames))
    locked = sorted(batch)
    lows = [row_id(shard, 0) for shard in locked]
    highs = [row_id(shard + 1, 0) - 1 for shard in locked]

    def work(transaction: LogWrite) -> StoredRows | None:
        if transaction.shard_count != shards:
            return None
        for shard, last in transaction.answers[1]:
            if last is not None and last >= row_id(shard, transaction.shards[shard].end):
                raise wrong_end(shard)
        return _append(transaction, batch, _streams(transaction, names))

    last_rows = Statement(_LAST_ROWS, (locked, lows, highs))
    return store.write(locked, work, _find_streams(names), last_rows, has_news=True)


def note_missing(store: PostgresLogStore, heads: Sequence[tuple[bytes, str, int]], shards: int) -> bool:
    """As `RowLog.note_heads`."""
    names = _names((shard_of(topic, shards), guid, topic) for guid, topic, _ in heads)

    def work(transaction: LogWrite) -> bool:
        if transaction.shard_count != shards:
            return False
        streams = _streams(transaction, names)
        for guid, topic, head in heads:
            stream = streams[guid, topic]
            stream.position = extend(stream.position, head, ranges_max=MISSING_RANGES_MAX)
        _move(transaction, streams.values(), transaction.now_ns)
        return True

    return store.write(sorted({shard for shard, _ in names.values()}), work, _find_streams(names))


def _append(transaction: LogWrite, batch: Batch, streams: Mapping[tuple[bytes, str], StreamRow]) -> StoredRows:
    events = duplicates = forgotten = 0
    ends: dict[int, int] = {}
    for shard, frames in batch.items():
        state = transaction.shards[shard]
        now_ns = stamp(transaction.now_ns, state.appended_ns)
        placed = place_frames(shard, state.end, now_ns, frames, lambda *name: streams[name])
        transaction.queue(_ADD_FRAME, placed.rows)
        _move(transaction, placed.streams, now_ns)
        if placed.end > state.end:
            transaction.queue(_MOVE_SHARD, [(placed.end, placed.bytes, now_ns, shard)])
            ends[shard] = placed.end
        events += placed.end - state.end
        duplicates += sum(header.count for header, _ in frames) - (placed.end - state.end)
        forgotten += placed.forgotten
    return StoredRows(Appended(events, duplicates, ends), forgotten)


def _names(streams: Iterable[tuple[int, bytes, str]]) -> _Names:
    return {(guid, topic): (shard, stream_key(guid, topic)) for shard, guid, topic in streams}


def _find_streams(names: _Names) -> Statement:
    return Statement(_FIND_STREAMS, ([key for _, key in names.values()],))


def _streams(transaction: LogWrite, names: _Names) -> dict[tuple[bytes, str], StreamRow]:
    """The streams, which are made when there are none yet.  Raises LogCorrupt when where one stands is damaged."""
    known = {bytes(key): (number, bytes(position)) for key, number, position, _ in transaction.answers[0]}
    homes = {number: home for _, number, _, home in transaction.answers[0]}
    new = [(shard, key, encode_position(key, NOWHERE)) for shard, key in names.values() if key not in known]
    found = {
        name: StreamRow(known[key][0], key, decode_position(shard, key, known[key][1]))
        for name, (shard, key) in names.items()
        if key in known
    }
    taken = [(shard, known[key][0]) for shard, key in names.values() if key in known and homes[known[key][0]] != shard]
    transaction.queue(_TAKE_OVER, taken)
    if new:
        columns = [list(column) for column in zip(*new, strict=True)]
        made: dict[bytes, int] = dict(transaction.execute(Statement(_NEW_STREAMS, columns)))
        found |= {name: StreamRow(made[key], key, NOWHERE) for name, (_, key) in names.items() if key in made}
    return found


def _move(transaction: LogWrite, streams: Iterable[StreamRow], now_ns: int) -> None:
    transaction.queue(_MOVE_STREAM, [(encode_position(one.key, one.position), now_ns, one.id) for one in streams])
