"""Appending frames, inside of a transaction that is open already.

Everything that depends on frames alone is done before (`group`), because the transaction keeps all others waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from durable_log.core.checksums import frame_checksum
from durable_log.core.placing import NOWHERE, StreamPosition, extend, place
from durable_log.core.positions import decode_position, encode_position, stream_key, wrong_end
from durable_log.log_api import CLOCK_AHEAD_MAX_NS, Appended, shard_of
from heliograph_drivers.log.sqlite.schema import row_id
from pubsub_api.core.frame import Header

Batch = Mapping[int, Sequence[tuple[Header, bytes]]]
"""Shard -> frames, in the order of appending."""

_StreamKey = tuple[bytes, str]
_Row = tuple[int, int, int, int, int, int, int, bytes]


def group(frames: Sequence[bytes], headers: Sequence[Header], shards: int) -> Batch:
    """Sort frames by shard.  Frames of one topic keep their order."""
    batch: dict[int, list[tuple[Header, bytes]]] = {}
    known: dict[str, list[tuple[Header, bytes]]] = {}
    for header, frame in zip(headers, frames, strict=True):
        topic = header.topic
        if topic not in known:
            known[topic] = batch.setdefault(shard_of(topic, shards), [])
        known[topic].append((header, frame))
    return batch


def append(connection: sqlite3.Connection, batch: Batch, now_ns: int, *, ranges_max: int) -> tuple[Appended, int]:
    """Store what is new.  Also returns how many missing numbers were forgotten."""
    appending = _Appending(connection, ranges_max)
    for shard, frames in batch.items():
        appending.append(shard, frames, now_ns)
    return Appended(appending.events, appending.duplicates, appending.ends), appending.forgotten


def note_missing(
    connection: sqlite3.Connection,
    heads: Sequence[tuple[bytes, str, int]],
    shards: int,
    now_ns: int,
    *,
    ranges_max: int,
) -> None:
    for guid, topic, head in heads:
        stream = find_stream(connection, shard_of(topic, shards), guid, topic)
        position = extend(stream.position, head, ranges_max=ranges_max)
        if position != stream.position:
            connection.execute(
                "UPDATE streams SET position = ?, appended_ns = ? WHERE id = ?",
                (encode_position(stream.key, position), now_ns, stream.id),
            )


class _Stream:
    __slots__ = ("id", "key", "position")

    def __init__(self, number: int, key: bytes, position: StreamPosition) -> None:
        self.id = number
        self.key = key
        self.position = position


class _Appending:
    """One call's appends.  Each stream is read once and written once, however many frames it has."""

    def __init__(self, connection: sqlite3.Connection, ranges_max: int) -> None:
        self._connection = connection
        self._ranges_max = ranges_max
        self.events = self.duplicates = self.forgotten = 0
        self.ends: dict[int, int] = {}

    def append(self, shard: int, frames: Sequence[tuple[Header, bytes]], now_ns: int) -> None:
        (end, size, before_ns, last) = self._connection.execute(
            'SELECT "end", bytes, appended_ns, (SELECT max(id) FROM frames WHERE id BETWEEN ?2 AND ?3) '
            "FROM shards WHERE shard = ?1",
            (shard, row_id(shard, 0), row_id(shard + 1, 0) - 1),
        ).fetchone()
        if last is not None and last >= row_id(shard, end):
            raise wrong_end(shard)
        if before_ns <= now_ns + CLOCK_AHEAD_MAX_NS:
            now_ns = max(now_ns, before_ns)  # a clock that was set back must not put `find` in disorder
        start, streams, rows = end, dict[_StreamKey, _Stream](), list[_Row]()
        beginning = row_id(shard, 0)
        for header, frame in frames:
            stream = streams.get((header.guid, header.topic))
            if stream is None:
                stream = find_stream(self._connection, shard, header.guid, header.topic)
                streams[header.guid, header.topic] = stream
            placement = place(header, stream.position, ranges_max=self._ranges_max)
            stream.position = placement.position
            self.forgotten += placement.forgotten
            for first, last in placement.kept:
                count = last - first + 1
                row, skipped = beginning + end, first - header.first
                checksum = frame_checksum(frame, row, count, skipped, now_ns, stream.id, first)
                rows.append((row, count, skipped, now_ns, stream.id, first, checksum, frame))
                end += count
                size += len(frame)
        self._connection.executemany("INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._connection.executemany(
            "UPDATE streams SET position = ?, appended_ns = ? WHERE id = ?",
            [(encode_position(one.key, one.position), now_ns, one.id) for one in streams.values()],
        )
        if end > start:
            self._connection.execute(
                'UPDATE shards SET "end" = ?, bytes = ?, appended_ns = ? WHERE shard = ?', (end, size, now_ns, shard)
            )
            self.ends[shard] = end
        self.events += end - start
        self.duplicates += sum(header.count for header, _ in frames) - (end - start)


def find_stream(connection: sqlite3.Connection, shard: int, guid: bytes, topic: str) -> _Stream:
    """A stream, which is made when there is none yet.  Raises LogCorrupt when where it stands is damaged."""
    key = stream_key(guid, topic)
    found = connection.execute(
        "SELECT id, position FROM streams WHERE guid = ? AND topic = ?", (guid, topic)
    ).fetchone()
    if found is not None:
        return _Stream(found[0], key, decode_position(shard, key, found[1]))
    number = connection.execute(
        "INSERT INTO streams (shard, guid, topic, position, appended_ns) VALUES (?, ?, ?, ?, 0)",
        (shard, guid, topic, encode_position(key, NOWHERE)),
    ).lastrowid
    assert number is not None
    return _Stream(number, key, NOWHERE)
