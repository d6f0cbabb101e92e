"""PostgreSQL with LISTEN and NOTIFY, as one uses psycopg by hand, without Heliograph.

The objects are in a table like Heliograph's.  A transaction of two statements makes or replaces an object and sends its
new value with the notification, which the server passes on when it commits: what most programs do.  A tuned program
puts both into one statement, which needs no transaction around it.  Statements are prepared.  A follower keeps a dict
of decoded values.  One that was away has missed what was told meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from bench.change_ends import TABLE, ChangeFollower, ChangeWriter, CopySink, ObjectWrite

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    tbl text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, value bytea,
    version bigint NOT NULL, deleted_at timestamptz, PRIMARY KEY (tbl, key));
CREATE INDEX IF NOT EXISTS objects_by_topic ON objects (topic, tbl) WHERE deleted_at IS NULL;
CREATE SEQUENCE IF NOT EXISTS revisions;
"""
_PUT = """
    INSERT INTO objects (tbl, key, topic, value, version) VALUES (%s, %s, %s, %s, nextval('revisions'))
    ON CONFLICT (tbl, key) DO UPDATE SET topic = excluded.topic, value = excluded.value, version = excluded.version
    RETURNING version
"""
_NOTIFY = "SELECT pg_notify('changes', %s)"
_PUT_AND_NOTIFY = f"""
    WITH put AS ({_PUT})
    SELECT pg_notify('changes', version || ' ' || %s::text) FROM put
"""
_LOCK = 4711
_LOOK_S = 0.2


class NotifyWriter(ChangeWriter):
    def __init__(self, database: str, _bus: str) -> None:
        self._connection = psycopg.connect(database, autocommit=True)
        with self._connection.transaction():  # several writers may begin at once
            self._connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            self._connection.execute(_TABLES)
        self._cursor = self._connection.cursor()
        self._encode = msgspec.json.Encoder().encode

    def put(self, write: ObjectWrite) -> None:
        value = self._encode(write.value)
        with self._connection.transaction():
            row = (TABLE, write.key, write.topic, value)
            found = self._cursor.execute(_PUT, row, prepare=True).fetchone()
            assert found is not None
            self._cursor.execute(_NOTIFY, [f"{found[0]} {write.key} {value.decode()}"], prepare=True)

    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        """With the one statement, pipelined: anything else would be a round trip per object."""
        with self._connection.pipeline(), self._connection.transaction():
            self._cursor.executemany(_PUT_AND_NOTIFY, [self._row(write) for write in writes])

    def _row(self, write: ObjectWrite) -> tuple[str, str, str, bytes, str]:
        value = self._encode(write.value)
        return TABLE, write.key, write.topic, value, f"{write.key} {value.decode()}"

    def close(self) -> None:
        self._connection.close()


class TunedNotifyWriter(NotifyWriter):
    """One round trip for each object."""

    def put(self, write: ObjectWrite) -> None:
        self._cursor.execute(_PUT_AND_NOTIFY, self._row(write), prepare=True)


class ListenFollower(ChangeFollower):
    def __init__(self, database: str, _bus: str, _addresses: Sequence[str], sink: CopySink) -> None:
        self._sink = sink
        self._connection = psycopg.connect(database, autocommit=True)
        self._connection.execute("LISTEN changes")
        self._decode = msgspec.json.Decoder().decode
        found = self._connection.execute("SELECT key, version, value FROM objects WHERE tbl = %s", [TABLE])
        self._copy: dict[str, tuple[int, Any]] = {key: (version, self._decode(value)) for key, version, value in found}
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        decode, copy, on_change = self._decode, self._copy, self._sink.on_change
        while not self._is_closed:
            for notification in self._connection.notifies(timeout=_LOOK_S):
                version, key, text = notification.payload.split(" ", 2)
                value = decode(text)
                copy[key] = (int(version), value)
                on_change(key, value)

    def numbers(self) -> dict[str, int]:
        return {key: value["number"] for key, (_version, value) in self._copy.items()}

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._connection.close()
