"""Connections to one SQLite file that are opened by several threads at once."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

from heliograph_drivers.sqlite_common.pool import SqlitePool


@pytest.fixture
def pool(tmp_path: pathlib.Path) -> Iterator[SqlitePool]:
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE numbers (number)")
    connection.close()
    pool = SqlitePool(path, "")
    yield pool
    pool.close()


def test_a_log_that_another_thread_has_just_made_was_not_removed(pool: SqlitePool) -> None:
    before = pool._find()
    assert not before[2], "there must be no write-ahead log yet"

    def open_late(first: sqlite3.Connection) -> None:
        """What a thread does that had looked before the log was made."""
        second = pool._open_known(before)
        first.execute("INSERT INTO numbers VALUES (1)")
        assert second.execute("SELECT number FROM numbers").fetchall() == [(1,)]
        pool._discard(second)

    pool.run(open_late)


def test_a_log_that_was_removed_is_noticed(pool: SqlitePool, tmp_path: pathlib.Path) -> None:
    def open_late(_first: sqlite3.Connection) -> None:
        (tmp_path / "a.db-wal").unlink()
        with pytest.raises(sqlite3.OperationalError, match="was removed while it was used"):
            pool._open_known(pool._find())

    pool.run(open_late)
