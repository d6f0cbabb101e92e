"""The manifest of sealed segments, changed together with the hot frames in the transaction that is open; and what is
forgotten."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from durable_log.core.fence import Fence
from durable_log.core.positions import encode_position, stream_key
from durable_log.storage.frame_rows import row_id
from durable_log.storage.identity import Lineage
from durable_log.storage.segmented import RestoredShard, used_meanwhile


def manifest(connection: sqlite3.Connection, shard: int | None) -> list[str]:
    rows = connection.execute(
        "SELECT entry FROM segments WHERE ? IS NULL OR shard = ? ORDER BY shard, first", (shard, shard)
    )
    return [entry for (entry,) in rows]


def add(connection: sqlite3.Connection, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
    _check_fence(connection, fence)
    if first != _sealed(connection, shard):
        return False
    connection.execute("INSERT INTO segments VALUES (?, ?, ?)", (shard, first, entry))
    size = _remove_frames(connection, shard, first, end)
    connection.execute("UPDATE shards SET sealed = ?, bytes = bytes - ? WHERE shard = ?", (end, size, shard))
    return True


def replace(
    connection: sqlite3.Connection, shard: int, span: tuple[int, int], old: Sequence[str], entry: str,
    fence: Fence | None,
) -> bool:  # fmt: skip
    _check_fence(connection, fence)
    found = connection.execute(
        "SELECT entry FROM segments WHERE shard = ? AND first >= ? AND first < ? ORDER BY first", (shard, *span)
    ).fetchall()
    if [one for (one,) in found] != list(old):
        return False
    connection.execute("DELETE FROM segments WHERE shard = ? AND first >= ? AND first < ?", (shard, *span))
    connection.execute("INSERT INTO segments VALUES (?, ?, ?)", (shard, span[0], entry))
    return True


def drop(connection: sqlite3.Connection, shard: int, start: int, sealed: int) -> bool:
    if sealed != _sealed(connection, shard):
        return False
    connection.execute("DELETE FROM segments WHERE shard = ? AND first < ?", (shard, start))
    size = _remove_frames(connection, shard, 0, start)
    connection.execute(
        "UPDATE shards SET start = max(start, ?), sealed = max(sealed, ?), bytes = bytes - ? WHERE shard = ?",
        (start, start, size, shard),
    )
    return True


def restore(connection: sqlite3.Connection, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
    for one in shards:
        (end,) = connection.execute('SELECT "end" FROM shards WHERE shard = ?', (one.shard,)).fetchone()
        if end != one.former_end:
            raise used_meanwhile(one.shard)
        connection.execute("DELETE FROM segments WHERE shard = ?", (one.shard,))
        rows = [(one.shard, first, entry) for first, entry in one.entries]
        connection.executemany("INSERT INTO segments VALUES (?, ?, ?)", rows)
        size = _remove_frames(connection, one.shard, 0, one.sealed)
        connection.execute(
            'UPDATE shards SET start = ?, sealed = ?, "end" = ?, bytes = bytes - ? WHERE shard = ?',
            (one.start, one.sealed, one.end, size, one.shard),
        )
        connection.executemany(
            "DELETE FROM streams WHERE shard = ? AND CAST(guid || topic AS BLOB) = ?",
            [(one.shard, key) for key in one.forgotten],
        )
        connection.executemany(
            "INSERT INTO streams (shard, guid, topic, position, appended_ns) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (guid, topic) DO UPDATE SET position = excluded.position",
            [(one.shard, guid, topic, encode_position(stream_key(guid, topic), position), time.time_ns())
             for (guid, topic), position in one.streams.items()],
        )  # fmt: skip
    connection.execute("UPDATE log SET identity = ?, ancestors = ?", (lineage.identity, " ".join(lineage.ancestors)))


def directory_token(connection: sqlite3.Connection) -> str:
    (token,) = connection.execute("SELECT directory_token FROM log").fetchone()
    return str(token)


def set_directory_token(connection: sqlite3.Connection, token: str, fence: Fence | None) -> None:
    _check_fence(connection, fence)
    connection.execute("UPDATE log SET directory_token = ?", (token,))


def forget_streams(connection: sqlite3.Connection, before_ns: int) -> int:
    # A stream whose frames are hot is kept: they are found by its row.
    return connection.execute(
        "DELETE FROM streams WHERE appended_ns < ? AND NOT EXISTS (SELECT 1 FROM frames WHERE stream = streams.id)",
        (before_ns,),
    ).rowcount


def _check_fence(connection: sqlite3.Connection, fence: Fence | None) -> None:
    """Raises LeaseLost."""
    if fence is not None:
        found = connection.execute("SELECT value FROM records WHERE name = ?", (fence.record,)).fetchone()
        fence.check(found and found[0])


def _sealed(connection: sqlite3.Connection, shard: int) -> int:
    (sealed,) = connection.execute("SELECT sealed FROM shards WHERE shard = ?", (shard,)).fetchone()
    return int(sealed)


def _remove_frames(connection: sqlite3.Connection, shard: int, first: int, end: int) -> int:
    """Returns how many bytes of frames went."""
    span = (row_id(shard, first), row_id(shard, end))
    (size,) = connection.execute(
        "SELECT coalesce(sum(length(frame)), 0) FROM frames WHERE id >= ? AND id < ?", span
    ).fetchone()
    connection.execute("DELETE FROM frames WHERE id >= ? AND id < ?", span)
    return int(size)
