"""Compare-and-set records: small values with versions that are never used twice."""

from __future__ import annotations

from collections.abc import Sequence

from durable_log.core.checks import Write
from durable_log.errors import RecordConflict
from durable_log.log_api import Record
from heliograph_drivers.log.postgres.store import LogWrite, PostgresLogStore, Statement

_BEYOND = "\U0010ffff"  # sorts behind every name that goes on from a prefix
PUT = """INSERT INTO @records VALUES (%s, %b, %s)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version"""


def get(store: PostgresLogStore, name: str) -> Record | None:
    [rows] = store.read(Statement("SELECT name, value, version FROM @records WHERE name = %s", (name,)))
    return Record(*rows[0]) if rows else None


def starting_with(store: PostgresLogStore, prefix: str) -> list[Record]:
    source = "SELECT name, value, version FROM @records WHERE name >= %s AND name < %s ORDER BY name"
    [rows] = store.read(Statement(source, (prefix, prefix + _BEYOND)))
    return [Record(*row) for row in rows]


def put(store: PostgresLogStore, writes: Sequence[Write]) -> list[int]:
    """All or nothing.  Raises RecordConflict."""

    def work(transaction: LogWrite) -> list[int]:
        [[(newest,)], known] = transaction.answers
        versions: dict[str, int] = dict(known)
        for name, _, expected in writes:
            version = versions.get(name, 0)
            if expected not in (None, version):
                raise RecordConflict(f"record {name!r} has version {version}, not {expected} as expected")
        new = list(range(newest + 1, newest + 1 + len(writes)))
        numbered = list(zip(writes, new, strict=True))
        transaction.queue(
            "DELETE FROM @records WHERE name = %s", [(name,) for name, value, _ in writes if value is None]
        )
        transaction.queue(PUT, [(name, value, number) for (name, value, _), number in numbered if value is not None])
        transaction.queue("UPDATE @log SET record_version = %s", [(new[-1],)])
        return new

    return store.write(
        (),
        work,
        Statement("SELECT record_version FROM @log"),
        Statement(
            "SELECT name, version FROM @records WHERE name = ANY(%s::text[])", ([name for name, _, _ in writes],)
        ),
    )
