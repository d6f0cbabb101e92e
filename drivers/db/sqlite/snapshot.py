"""A snapshot of a SQLite file: one read transaction on a connection of its own, read in portions.

While it is open, SQLite cannot recycle its write-ahead log.  So that a reader which has stalled does not let the log
grow without end, a snapshot is good for a limited time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator

from heliograph_drivers.db.sqlite import schema
from heliograph_drivers.sqlite_common.pool import GATE
from nb_api.core.checks import TopicSelection, decode_value
from nb_api.core.digests import BUCKET_SHIFT, BUCKETS
from nb_api.db_api import DbObject, Snapshot
from nb_api.errors import DbUnavailable
from pubsub_api.core.topics import is_wildcard, literal_prefix
from pubsub_api.errors import Closed

_Row = tuple[str, str, str, bytes, int]

HALF = 32
_BUCKET = f"((version >> {BUCKET_SHIFT}) & {BUCKETS - 1})"
_NAMES_MAX = 500
_RANGES_MAX = 100
"""With more tables or filters SQLite is not asked to choose: it has limits of its own, and scanning is faster."""


def query(selection: TopicSelection) -> tuple[str, list[str]]:
    """The statement and its parameters that find what is selected; too much where SQL cannot say it."""
    where, parameters = _where(_tables(selection), _topics(selection), _buckets(selection))
    return f"SELECT table_name, key, topic, value, version FROM objects WHERE {where}", parameters


def digests_query(selection: TopicSelection, *, by_bucket: bool) -> tuple[str, list[str]] | None:
    """The same for table, bucket, how many objects, and the sums of the lower and the upper half of their versions: a
    sum of whole ones may be too large for SQLite.  None where SQL cannot say what is selected."""
    tables, topics = _tables(selection), _topics(selection)
    is_said = (selection.tables is None or tables[0]) and (selection.filters is None or topics[0])
    if not is_said or not selection.has_plain_topics:
        return None
    where, parameters = _where(tables, topics)
    columns = ["table_name", _BUCKET if by_bucket else "0"]
    # One table alone need not be grouped, which takes most of the time.  An aggregate of nothing is a row, too.
    groups = [] if selection.tables and len(selection.tables) == 1 else columns[:1]
    groups += columns[1:] if by_bucket else []
    grouping = f"GROUP BY {', '.join(groups)}" if groups else ""
    sums = f"count(*), sum(version & {(1 << HALF) - 1}), sum(version >> {HALF})"
    return f"SELECT {', '.join(columns)}, {sums} FROM objects WHERE {where} {grouping}", parameters


def _where(*parts: tuple[str, list[str]]) -> tuple[str, list[str]]:
    conditions = ["deleted_at IS NULL", *(condition for condition, _ in parts if condition)]
    return " AND ".join(conditions), [parameter for _, some in parts for parameter in some]


def _buckets(selection: TopicSelection) -> tuple[str, list[str]]:
    if selection.buckets is None:
        return "", []
    return f"{_BUCKET} IN ({','.join(map(str, sorted(selection.buckets)))})", []


def _tables(selection: TopicSelection) -> tuple[str, list[str]]:
    if selection.tables is None or len(selection.tables) > _NAMES_MAX:
        return "", []
    return f"table_name IN ({_marks(selection.tables)})", list(selection.tables)


def _topics(selection: TopicSelection) -> tuple[str, list[str]]:
    filters = list(selection.filters or ())
    ranges = [literal_prefix(one) for one in filters if is_wildcard(one)]
    # The prefix itself too: a/# selects a.
    names = ranges + [one for one in filters if not is_wildcard(one)]
    if selection.filters is None or len(names) > _NAMES_MAX or len(ranges) > _RANGES_MAX or "" in ranges:
        return "", []
    alternatives = [f"topic IN ({_marks(names)})", *["topic > ? AND topic < ?"] * len(ranges)]
    # "0" is the character after "/".
    ends = [end for prefix in ranges for end in (f"{prefix}/", f"{prefix}0")]
    return f"({' OR '.join(alternatives)})", names + ends


def _marks(values: Collection[str]) -> str:
    return ",".join("?" * len(values))


class SqliteSnapshot(Snapshot):
    def __init__(
        self, connection: sqlite3.Connection, selection: TopicSelection, portion: int, time_max_s: float
    ) -> None:
        """Takes over the connection.  Call it inside of `GATE`.  Raises sqlite3.Error."""
        self._connection: sqlite3.Connection | None = connection
        self._selection = selection
        self._portion = portion
        self._time_max_s = time_max_s
        self._deadline = time.monotonic() + time_max_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._kept: list[_Row] | None = None
        connection.execute("BEGIN")
        self._revision = schema.newest(connection)
        self._rows = connection.execute(*query(selection))
        GATE.add(self)

    @property
    def revision(self) -> int:
        return self._revision

    def __iter__(self) -> Iterator[DbObject]:
        selects = (
            None if self._selection.filters is None and self._selection.tables is None else self._selection.selects
        )
        while portion := self._next_portion():
            for table, key, topic, value, version in portion:
                if selects is None or selects(table, topic):
                    yield DbObject(table, key, topic, decode_value(value), version)
        self.close()

    def close(self) -> None:
        with GATE, self._lock:
            self._is_closed = True
            self._release()

    def before_fork(self) -> None:
        """The transaction cannot live through a fork, so what is left of it is read now."""
        if self._connection is None:
            return
        with contextlib.suppress(sqlite3.Error):  # then nothing is kept, and the reader is told
            self._kept = self._rows.fetchall()
        self._release()

    def _next_portion(self) -> list[_Row]:
        with GATE, self._lock:
            if self._is_closed:
                raise Closed("the snapshot is closed, or was read before")
            if self._kept is not None:
                portion, self._kept = self._kept, []
                return portion
            if time.monotonic() > self._deadline:
                self._release()
                raise DbUnavailable(f"the snapshot was open longer than SNAPSHOT_TIME_MAX_S = {self._time_max_s} s")
            if self._connection is None:
                raise DbUnavailable("the snapshot could not be read to its end before a fork")
            try:
                return self._rows.fetchmany(self._portion)
            except sqlite3.Error as error:
                raise DbUnavailable(f"the snapshot cannot be read on: {error}") from error

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
