"""Appending frames, inside of a transaction that is open already.

Everything that depends on frames alone is done before (`durable_log.storage.frame_rows.group`), because the transaction
keeps all others waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from durable_log.config import MISSING_RANGES_MAX
from durable_log.core.placing import NOWHERE, extend
from durable_log.core.positions import decode_position, encode_position, stream_key, wrong_end
from durable_log.log_api import Appended, shard_of
from durable_log.storage.frame_rows import Batch, StreamRow, place_frames, row_id, stamp
from durable_log.storage.row_log import StoredRows
from pubsub_api.core.frame import Header


def append(connection: sqlite3.Connection, batch: Batch, shards: int, now_ns: int) -> StoredRows | None:
    """As `RowLog.append_rows`."""
    if not _has_shards(connection, shards):
        return None
    appending = _Appending(connection)
    for shard, frames in batch.items():
        appending.append(shard, frames, now_ns)
    return StoredRows(Appended(appending.events, appending.duplicates, appending.ends), appending.forgotten)


def note_missing(
    connection: sqlite3.Connection,
    heads: Sequence[tuple[bytes, str, int]],
    shards: int,
    now_ns: int,
) -> bool:
    """As `RowLog.note_heads`."""
    if not _has_shards(connection, shards):
        return False
    for guid, topic, head in heads:
        stream = find_stream(connection, shard_of(topic, shards), guid, topic)
        position = extend(stream.position, head, ranges_max=MISSING_RANGES_MAX)
        if position != stream.position:
            connection.execute(
                "UPDATE streams SET position = ?, appended_ns = ? WHERE id = ?",
                (encode_position(stream.key, position), now_ns, stream.id),
            )
    return True


def _has_shards(connection: sqlite3.Connection, shards: int) -> bool:
    return bool(connection.execute("SELECT shards = ? FROM log", (shards,)).fetchone()[0])


class _Appending:
    """One call's appends.  Each stream is read once and written once, however many frames it has."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.events = self.duplicates = self.forgotten = 0
        self.ends: dict[int, int] = {}

    def append(self, shard: int, frames: Sequence[tuple[Header, bytes]], now_ns: int) -> None:
        (start, size, before_ns, last) = self._connection.execute(
            'SELECT "end", bytes, appended_ns, (SELECT max(id) FROM frames WHERE id BETWEEN ? AND ?) '
            "FROM shards WHERE shard = ?",
            (row_id(shard, 0), row_id(shard + 1, 0) - 1, shard),
        ).fetchone()
        if last is not None and last >= row_id(shard, start):
            raise wrong_end(shard)
        now_ns = stamp(now_ns, before_ns)
        placed = place_frames(
            shard, start, now_ns, frames, lambda guid, topic: find_stream(self._connection, shard, guid, topic)
        )
        self._connection.executemany("INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?, ?, ?)", placed.rows)
        self._connection.executemany(
            "UPDATE streams SET position = ?, appended_ns = ? WHERE id = ?",
            [(encode_position(one.key, one.position), now_ns, one.id) for one in placed.streams],
        )
        if placed.end > start:
            self._connection.execute(
                'UPDATE shards SET "end" = ?, bytes = ?, appended_ns = ? WHERE shard = ?',
                (placed.end, size + placed.bytes, now_ns, shard),
            )
            self.ends[shard] = placed.end
        self.events += placed.end - start
        self.duplicates += sum(header.count for header, _ in frames) - (placed.end - start)
        self.forgotten += placed.forgotten


def find_stream(connection: sqlite3.Connection, shard: int, guid: bytes, topic: str) -> StreamRow:
    """A stream, which is made when there is none yet.  Raises LogCorrupt when where it stands is damaged."""
    key = stream_key(guid, topic)
    found = connection.execute(
        "SELECT id, position, shard FROM streams WHERE guid = ? AND topic = ?", (guid, topic)
    ).fetchone()
    if found is not None:
        if found[2] != shard:  # which has taken the topic over
            connection.execute("UPDATE streams SET shard = ? WHERE id = ?", (shard, found[0]))
        return StreamRow(found[0], key, decode_position(shard, key, found[1]))
    number = connection.execute(
        "INSERT INTO streams (shard, guid, topic, position, appended_ns) VALUES (?, ?, ?, ?, 0)",
        (shard, guid, topic, encode_position(key, NOWHERE)),
    ).lastrowid
    assert number is not None
    return StreamRow(number, key, NOWHERE)
