"""What the driver keeps in PostgreSQL, and how it comes into being.

``log`` is one row; ``shards`` has where each shard stands; ``frames`` what is not sealed, as
`durable_log.storage.frame_rows` says; ``streams`` where each stream stands; ``segments`` is the manifest; ``records``
are small values.  In statements ``@`` stands for the schema.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_log.storage.identity import Lineage, new_identity
from durable_log.storage.row_log import LogHeader
from heliograph_drivers.postgres_common.installing import check_encoding, lock_key
from heliograph_drivers.postgres_common.pool import PostgresConnection
from heliograph_drivers.postgres_common.settings import PostgresSettings
from pubsub_api.errors import InvalidConfig

FORMAT = 1
"""Raised when tables change in a way that an older driver cannot live with."""

# Every append updates a row of "shards", so it has room for the new one beside the old.  Frames are not compressed:
# publishers may have done so, and how large they are is told without reading them.  Names are compared byte by byte.
_TABLES = """
CREATE TABLE @log (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    format integer NOT NULL,
    shards integer NOT NULL,
    identity text NOT NULL,
    ancestors text NOT NULL DEFAULT '',  -- identities before it was repaired, with blanks between them
    directory_token text NOT NULL DEFAULT '',  -- tells this store from its copies
    record_version bigint NOT NULL DEFAULT 0
);
CREATE TABLE @shards (
    shard integer PRIMARY KEY,
    start bigint NOT NULL DEFAULT 0,
    sealed bigint NOT NULL DEFAULT 0,  -- offsets below are in segments, those from there to "end" in frames
    "end" bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    appended_ns bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
CREATE TABLE @frames (
    id bigint PRIMARY KEY,  -- shard and offset
    count bigint NOT NULL,
    skipped bigint NOT NULL,
    appended_ns bigint NOT NULL,
    stream bigint NOT NULL,
    first bigint NOT NULL,  -- number of the first event that counts
    checksum bigint NOT NULL,  -- of all the others
    frame bytea NOT NULL
);
ALTER TABLE @frames ALTER COLUMN frame SET STORAGE EXTERNAL;
CREATE INDEX frames_by_stream ON @frames (stream, first);
CREATE TABLE @streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard integer NOT NULL,
    key bytea NOT NULL UNIQUE,  -- GUID and topic
    position bytea NOT NULL,
    appended_ns bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX streams_by_shard ON @streams (shard);
CREATE TABLE @segments (shard integer, first bigint, entry text NOT NULL, PRIMARY KEY (shard, first));
CREATE TABLE @records (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL);
"""


def install(connection: PostgresConnection, settings: PostgresSettings, new_shards: Callable[[], int]) -> LogHeader:
    """Create what is missing, once, however many processes try.  Raises InvalidConfig, psycopg.Error."""
    check_encoding(connection, settings)
    if not is_installed(connection, settings):  # a user who may write but not create comes here too
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("install log", settings.schema),))
            if not is_installed(connection, settings):
                _create(connection, settings.schema, new_shards())
    row = connection.execute(f"SELECT shards, identity, ancestors FROM {settings.schema}.log").fetchone()
    assert row is not None, "the row was there a moment ago"
    shards, identity, ancestors = row
    return LogHeader(shards, Lineage(identity, frozenset(ancestors.split())))


def is_installed(connection: PostgresConnection, settings: PostgresSettings) -> bool:
    """Whether the schema has a log.  Raises InvalidConfig for one of another format, and psycopg.Error."""
    # Asked of the catalogue itself: to_regclass() may answer from a cache that is older than the lock.
    found = connection.execute(
        """SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = %s AND c.relname = 'log'""",
        (settings.schema,),
    ).fetchone()
    if found is None:
        return False
    row = connection.execute(f"SELECT format FROM {settings.schema}.log").fetchone()
    if row is None or row[0] != FORMAT:
        raise InvalidConfig(
            f"the log at {settings.address} has format {row and row[0]}; this release reads format {FORMAT} and has "
            "changed nothing. Read it with the release that made it, or name another schema for a new log"
        )
    return True


def _create(connection: PostgresConnection, schema: str, shards: int) -> None:
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connection.execute(_TABLES.replace("@", f"{schema}.").encode())
    connection.execute(
        f"INSERT INTO {schema}.log (format, shards, identity) VALUES (%s, %s, %s)", (FORMAT, shards, new_identity())
    )
    connection.execute(f"INSERT INTO {schema}.shards (shard) SELECT generate_series(0, %s - 1)", (shards,))
