"""A snapshot that PostgreSQL keeps: a cursor in a transaction of its own, read in portions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from heliograph_drivers.db.postgres.config import PostgresDbSettings
from heliograph_drivers.postgres_common.pool import PostgresConnection, PostgresPool, Row
from nb_api.core import checks
from nb_api.core.digests import BUCKET_SHIFT, BUCKETS
from nb_api.db_api import DbObject, Snapshot
from pubsub_api.core.topics import FilterSet, is_wildcard, literal_prefix
from pubsub_api.errors import Closed
from pubsub_api.runtime.forking import ForkGuard

_BUCKET = f"((version >> {BUCKET_SHIFT}) & {BUCKETS - 1})"
_RANGES_MAX = 1000
"""With more wildcard filters than this the server sends all topics and the matcher here sorts them out."""


class PostgresSnapshot(Snapshot):
    """Holds a connection until it is read to the end, closed, or left standing for ``SNAPSHOT_IDLE_TIMEOUT_S``."""

    def __init__(self, pool: PostgresPool, settings: PostgresDbSettings, selection: checks.TopicSelection) -> None:
        self._pool = pool
        self._selection = selection
        self._portion = settings.snapshot_portion
        self._guard = ForkGuard("snapshot")
        self._connection: PostgresConnection | None = None
        with pool.translated():
            self._connection = pool.acquire()
            try:
                self._revision = _begin(self._connection, settings.schema, selection)
            except BaseException:
                self.close()
                raise

    @property
    def revision(self) -> int:
        return self._revision

    def __iter__(self) -> Iterator[DbObject]:
        selects = self._selection.selects
        while rows := self._fetch():
            for table, key, topic, value, version in rows:
                if selects(table, topic):
                    yield DbObject(table, key, topic, checks.decode_value(value), version)
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not self._guard.is_child:
            with contextlib.suppress(psycopg.Error):  # the pool gives up a connection whose transaction did not end
                connection.rollback()
        self._pool.release(connection)

    def _fetch(self) -> list[Row]:
        self._guard.check()
        if self._connection is None:
            raise Closed("the snapshot was read to its end or closed; take another one")
        try:
            with self._pool.translated():
                return self._connection.execute(f"FETCH {self._portion} FROM objects", binary=True).fetchall()
        except BaseException:
            self.close()
            raise


def _begin(connection: PostgresConnection, schema: str, selection: checks.TopicSelection) -> int:
    """Freeze what is committed, open the cursor, and return the revision.  Raises psycopg.Error."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    revision = connection.execute(
        f"SELECT greatest(compacted, (SELECT max(revision) FROM {schema}.changes)) FROM {schema}.state"
    ).fetchone()
    condition, parameters = _condition(selection)
    # Formatted by the client, because PostgreSQL takes no parameters in a DECLARE.
    psycopg.ClientCursor(connection).execute(
        f"""DECLARE objects NO SCROLL CURSOR FOR SELECT tbl, key, topic, value, version
            FROM {schema}.objects WHERE deleted_at IS NULL AND {condition}""",
        parameters,
    )
    return int(revision[0]) if revision else 0


def _condition(selection: checks.TopicSelection) -> tuple[str, list[Any]]:
    """As much of the selection as an index can serve; the matcher does the rest."""
    conditions = ["true"]
    parameters: list[Any] = []
    if selection.tables is not None:
        conditions.append("tbl = ANY(%s::text[])")
        parameters.append(list(selection.tables))
    if selection.filters is not None:
        topics, topic_parameters = _topic_condition(selection.filters)
        conditions.append(f"({topics})")
        parameters += topic_parameters
    if selection.buckets is not None:
        conditions.append(f"{_BUCKET} = ANY(%s::bigint[])")
        parameters.append(sorted(selection.buckets))
    return " AND ".join(conditions), parameters


def digests_query(schema: str, selection: checks.TopicSelection, *, by_bucket: bool) -> tuple[str, list[Any]]:
    """One row even when nothing is selected: revision, table, bucket, how many objects, the sum of their versions.

    All of the selection is in it, so the filters have to be plain.
    """
    condition, parameters = _condition(selection)
    return (
        f"""SELECT greatest(compacted, (SELECT max(revision) FROM {schema}.changes)), d.*
        FROM {schema}.state LEFT JOIN (
            SELECT tbl, {_BUCKET if by_bucket else "0::bigint"} AS bucket, count(*), sum(version)::text
            FROM {schema}.objects WHERE deleted_at IS NULL AND {condition} GROUP BY 1, 2
        ) d ON true""",
        parameters,
    )


def _topic_condition(filters: FilterSet) -> tuple[str, list[Any]]:
    exact = [topic for topic in filters if not is_wildcard(topic)]
    prefixes = {literal_prefix(topic) for topic in filters if is_wildcard(topic)}
    if "" in prefixes or len(prefixes) > _RANGES_MAX:
        return "true", []
    conditions: list[str] = ["topic = ANY(%s::text[])"]
    parameters: list[Any] = [exact + sorted(prefixes)]
    for prefix in sorted(prefixes):
        conditions.append("(topic > %s AND topic < %s)")  # "0" is the character after "/"
        parameters += [f"{prefix}/", f"{prefix}0"]
    return " OR ".join(conditions), parameters
