"""The outbox of an SQLite database: the changes that want to be published and that no published run covers.

A commit writes nothing for it but a time into the change itself (``changes.since``; NULL: not to be published).
What is published is noted later, many changes at a time, as runs of revisions in the table ``published``.  Runs do not
overlap, and at least one change that waits is between any two: in the normal case there is one run, from 0 on.

`mark` and `settle` run in the transaction that the caller has begun; the others only read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from heliograph_drivers.db.sqlite import schema
from nb_api.core.checks import REVISION_MAX
from nb_api.revisions import NONCE_BITS, number_of

IS_PUBLISHED = "(SELECT last FROM published WHERE first <= changes.revision ORDER BY first DESC LIMIT 1) >= revision"
"""A condition on ``changes``."""

_SETTLE_MIN = 10_000
"""Changes that are not to be published and that are looked at again and again, before it pays to note that."""

_WANTED = "SELECT revision FROM changes WHERE revision > ? AND revision < ? AND since IS NOT NULL ORDER BY revision"


def waiting(
    connection: sqlite3.Connection, columns: str, *, since: float, old: int, after: int, limit: int
) -> list[tuple[Any, ...]]:
    """These columns of the changes after a revision that wait since then or longer by the clock, or are not newer than
    revision ``old``; oldest first."""
    sql = (
        f"SELECT {columns} FROM changes WHERE revision > ? AND revision < ? AND since IS NOT NULL "
        "AND (since <= ? OR revision <= ?) ORDER BY revision LIMIT ?"
    )
    rows: list[tuple[Any, ...]] = []
    for low, high in _gaps(connection):
        rows += connection.execute(sql, (max(low, after), high, since, old, limit - len(rows))).fetchall()
        if len(rows) >= limit:
            break
    return rows


def _gaps(connection: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """Before and after what: the places that no published run covers."""
    runs = connection.execute("SELECT first, last FROM published ORDER BY first").fetchall()
    for (_, last), (following, _) in zip(runs, [*runs[1:], (REVISION_MAX, REVISION_MAX)], strict=True):
        yield last, following


def is_unsettled(connection: sqlite3.Connection) -> bool:
    """Whether `settle` would spare the readers much: after the last run comes a long row of changes that are not to be
    published, as where there is no bus."""
    (last,) = connection.execute("SELECT last FROM published ORDER BY first DESC LIMIT 1").fetchone()
    if number_of(schema.newest(connection)) - number_of(last) < _SETTLE_MIN:
        return False
    return connection.execute(_WANTED + " LIMIT 1", (last, last + (_SETTLE_MIN << NONCE_BITS))).fetchone() is None


def settle(connection: sqlite3.Connection) -> None:
    """Let the last run reach over the changes after it that are not to be published."""
    _cover(connection, *connection.execute("SELECT first, last FROM published ORDER BY first DESC LIMIT 1").fetchone())


def mark(connection: sqlite3.Connection, revisions: Iterable[int]) -> None:
    """Note that these are published, as far as they exist: those of a history that is lost name nothing here."""
    for first, last in runs_of(sorted(schema.known(connection, revisions))):
        _cover(connection, first, last)


def _cover(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Have these revisions in one run, with all around them that do not wait."""
    begin, end = connection.execute(
        "SELECT first, last FROM published WHERE first <= ? ORDER BY first DESC LIMIT 1", (first,)
    ).fetchone()
    if end < first:
        waits = connection.execute(_WANTED + " DESC LIMIT 1", (end, first)).fetchone()
        begin = begin if waits is None else waits[0] + 1
    end = _end(connection, begin, max(end, last))
    connection.execute("DELETE FROM published WHERE first BETWEEN ? AND ?", (begin, end))
    connection.execute("INSERT INTO published VALUES (?, ?)", (begin, end))


def _end(connection: sqlite3.Connection, begin: int, end: int) -> int:
    """How far a run from ``begin``, at least to ``end``, reaches before a change that waits."""
    sql = "SELECT max(last) FROM published WHERE first BETWEEN ? AND ?"
    (absorbed,) = connection.execute(sql, (begin, end)).fetchone()
    end = max(end, absorbed or 0)
    sql = "SELECT first, last FROM published WHERE first > ? ORDER BY first LIMIT 1"
    following, its_end = connection.execute(sql, (end,)).fetchone() or (REVISION_MAX, schema.newest(connection))
    waits = connection.execute(_WANTED + " LIMIT 1", (end, following)).fetchone()
    return int(its_end if waits is None else waits[0] - 1)


def runs_of(revisions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising revisions of changes as runs that leave none out: the first and the last of each."""
    if revisions and number_of(revisions[-1]) - number_of(revisions[0]) == len(revisions) - 1:
        yield revisions[0], revisions[-1]  # where one process writes, that is all
        return
    first = last = -1
    for revision in revisions:
        if first >= 0 and number_of(revision) == number_of(last) + 1:
            last = revision
            continue
        if first >= 0:
            yield first, last
        first = last = revision
    if first >= 0:
        yield first, last
