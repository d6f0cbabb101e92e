"""The outbox of an SQLite database: runs of revisions that nobody has published yet, without overlap.

Everything here runs in the transaction that the caller has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from nb_api.writes import CheckedWrite


def add(connection: sqlite3.Connection, writes: Iterable[CheckedWrite], revisions: list[int], now: float) -> None:
    """Put in what these writes, which are being committed under these revisions, want published."""
    wanted = (revision for write, revision in zip(writes, revisions, strict=True) if write.with_outbox)
    rows = [(first, last, now) for first, last in runs_of(wanted)]
    if rows:
        connection.executemany("INSERT INTO outbox VALUES (?, ?, ?)", rows)


def remove(connection: sqlite3.Connection, revisions: Iterable[int]) -> None:
    """Take these revisions out, as far as they are in it."""
    for first, last in runs_of(sorted(set(revisions))):
        _cut_before(connection, first, last)
        connection.execute("DELETE FROM outbox WHERE first BETWEEN ? AND ? AND last <= ?", (first, last, last))
        # What is left of those that begin within is one that goes on beyond.
        connection.execute("UPDATE outbox SET first = ? WHERE first BETWEEN ? AND ?", (last + 1, first, last))


def _cut_before(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Where a run begins before ``first`` and reaches into the range, keep what is outside."""
    sql = "SELECT first, last, since FROM outbox WHERE first < ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(sql, (first,)).fetchone()
    if row is None or row[1] < first:
        return
    connection.execute("UPDATE outbox SET last = ? WHERE first = ?", (first - 1, row[0]))
    if row[1] > last:
        connection.execute("INSERT INTO outbox VALUES (?, ?, ?)", (last + 1, row[1], row[2]))


def runs_of(revisions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as runs without a gap: the first and the last of each."""
    first = last = 0
    for revision in revisions:
        if revision == last + 1 and first:
            last = revision
            continue
        if first:
            yield first, last
        first = last = revision
    if first:
        yield first, last
