"""The manifest of sealed segments, changed together with the hot frames in one transaction; and what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from durable_log.core.fence import Fence
from durable_log.core.positions import encode_position, stream_key
from durable_log.storage import shard_map
from durable_log.storage.frame_rows import row_id
from durable_log.storage.identity import Lineage
from durable_log.storage.segmented import RestoredShard, used_meanwhile
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.log.postgres.records import PUT
from heliograph_drivers.log.postgres.store import LogWrite, PostgresLogStore, Statement

_ADD = "INSERT INTO @segments VALUES (%s, %s, %s)"


def manifest(store: PostgresLogStore, shard: int | None) -> list[str]:
    where = "WHERE shard = %s" if shard is not None else ""
    parameters = [shard] if shard is not None else []
    [rows] = store.read(Statement(f"SELECT entry FROM @segments {where} ORDER BY shard, first", parameters))
    return [entry for (entry,) in rows]


def add(store: PostgresLogStore, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
    def work(transaction: LogWrite) -> bool:
        _check_fence(transaction, fence)
        if first != transaction.shards[shard].sealed:
            return False
        size = _remove_frames(transaction, shard, first, end)
        transaction.queue(_ADD, [(shard, first, entry)])
        transaction.queue("UPDATE @shards SET sealed = %s, bytes = bytes - %s WHERE shard = %s", [(end, size, shard)])
        return True

    return store.write([shard], work)


def replace(
    store: PostgresLogStore, shard: int, span: tuple[int, int], old: Sequence[str], entry: str, fence: Fence | None
) -> bool:
    where = "FROM @segments WHERE shard = %s AND first >= %s AND first < %s"

    def work(transaction: LogWrite) -> bool:
        _check_fence(transaction, fence)
        if [one for (one,) in transaction.answers[0]] != list(old):
            return False
        transaction.queue(f"DELETE {where}", [(shard, *span)])
        transaction.queue(_ADD, [(shard, span[0], entry)])
        return True

    return store.write([shard], work, Statement(f"SELECT entry {where} ORDER BY first", (shard, *span)))


def drop(store: PostgresLogStore, shard: int, start: int, sealed: int) -> bool:
    def work(transaction: LogWrite) -> bool:
        state = transaction.shards[shard]
        if sealed != state.sealed:
            return False
        size = _remove_frames(transaction, shard, 0, start)
        transaction.queue("DELETE FROM @segments WHERE shard = %s AND first < %s", [(shard, start)])
        transaction.queue(
            "UPDATE @shards SET start = %s, sealed = %s, bytes = bytes - %s WHERE shard = %s",
            [(max(state.start, start), max(sealed, start), size, shard)],
        )
        return True

    return store.write([shard], work)


def restore(store: PostgresLogStore, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
    def work(transaction: LogWrite) -> None:
        for one in shards:
            if transaction.shards[one.shard].end != one.former_end:
                raise used_meanwhile(one.shard)
        for one in shards:
            _restore_shard(transaction, one)
        transaction.queue("UPDATE @log SET identity = %s, ancestors = %s", [(lineage[0], " ".join(lineage.ancestors))])

    store.write([one.shard for one in shards], work)
    store.identity = lineage.identity


def _restore_shard(transaction: LogWrite, one: RestoredShard) -> None:
    size = _remove_frames(transaction, one.shard, 0, one.sealed)
    transaction.queue("DELETE FROM @segments WHERE shard = %s", [(one.shard,)])
    transaction.queue(_ADD, [(one.shard, first, entry) for first, entry in one.entries])
    transaction.queue(
        'UPDATE @shards SET start = %s, sealed = %s, "end" = %s, bytes = bytes - %s WHERE shard = %s',
        [(one.start, one.sealed, one.end, size, one.shard)],
    )
    transaction.queue("DELETE FROM @streams WHERE shard = %s AND key = %b", [(one.shard, key) for key in one.forgotten])
    keys = {stream_key(*name): position for name, position in one.streams.items()}
    transaction.queue(
        """INSERT INTO @streams (shard, key, position, appended_ns) VALUES (%s, %b, %b, %s)
           ON CONFLICT (key) DO UPDATE SET position = excluded.position""",
        [(one.shard, key, encode_position(key, position), transaction.now_ns) for key, position in keys.items()],
    )


def directory_token(store: PostgresLogStore) -> str:
    [[(token,)]] = store.read(Statement("SELECT directory_token FROM @log"))
    return str(token)


def set_directory_token(store: PostgresLogStore, token: str, fence: Fence | None) -> None:
    def work(transaction: LogWrite) -> None:
        _check_fence(transaction, fence)
        transaction.queue("UPDATE @log SET directory_token = %s", [(token,)])

    store.write((), work)


def forget_streams(store: PostgresLogStore, shard: int, before_ns: int, *, locked: Sequence[int]) -> int:
    """``locked`` are the shard and those that may be taking streams over from it now."""
    # A stream whose frames are hot is kept: they are found by its row.
    source = """WITH gone AS (
        DELETE FROM @streams s WHERE shard = %s AND appended_ns < %s
            AND NOT EXISTS (SELECT FROM @frames f WHERE f.stream = s.id) RETURNING 1
    ) SELECT count(*) FROM gone"""
    [(count,)] = store.write(locked, lambda transaction: transaction.execute(Statement(source, (shard, before_ns))))
    return int(count)


def add_shards(store: PostgresLogStore, found: ShardMap, shards: int) -> ShardMap | None:
    """Waits for every append that is going on."""

    def work(transaction: LogWrite) -> ShardMap | None:
        # The number is read once more: another process may have added shards while this one waited for the others.
        [(count, newest)] = transaction.execute(Statement("SELECT shards, record_version FROM @log FOR UPDATE"))
        if count != found.shards:
            return None
        former = [transaction.shards[shard] for shard in range(found.shards)]
        grown = found.grown(shards, [one.end for one in former])
        # Times do not fall from a shard to those that take topics over from it.
        new = [(shard, former[shard % found.shards].appended_ns) for shard in range(found.shards, shards)]
        transaction.queue("INSERT INTO @shards (shard, appended_ns) VALUES (%s, %s)", new)
        transaction.queue("UPDATE @log SET shards = %s, record_version = %s", [(shards, newest + 1)])
        transaction.queue(PUT, [(shard_map.RECORD, shard_map.encode(grown), newest + 1)])
        return grown

    return store.write(range(found.shards), work)


def _check_fence(transaction: LogWrite, fence: Fence | None) -> None:
    """Raises LeaseLost.  The row stays as it is until the transaction ends."""
    if fence is not None:
        rows = transaction.execute(Statement("SELECT value FROM @records WHERE name = %s FOR SHARE", (fence.record,)))
        fence.check(rows[0][0] if rows else None)


def _remove_frames(transaction: LogWrite, shard: int, first: int, end: int) -> int:
    """Returns how many bytes of frames went."""
    source = """WITH gone AS (DELETE FROM @frames WHERE id >= %s AND id < %s RETURNING octet_length(frame) AS bytes)
        SELECT coalesce(sum(bytes), 0)::bigint FROM gone"""
    [(size,)] = transaction.execute(Statement(source, (row_id(shard, first), row_id(shard, end))))
    return int(size)
