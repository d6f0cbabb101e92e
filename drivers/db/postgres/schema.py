"""What the driver keeps in PostgreSQL: the tables, the function that makes a change, and how they come into being.

``objects`` holds the newest version of every object, tombstones included; ``changes`` is the feed; ``outbox`` names the
changes that are not confirmed; ``counters`` is for `allocate`; ``state`` is one row.  Why the function takes a lock
before it takes a number is told in `heliograph_drivers.db.postgres`.
"""

from __future__ import annotations

import psycopg

from heliograph_drivers.db.postgres.config import PostgresDbSettings
from heliograph_drivers.postgres_common.installing import check_encoding, lock_key
from heliograph_drivers.postgres_common.pool import PostgresConnection
from nb_api.revisions import NONCE_BITS
from pubsub_api.errors import InvalidConfig

FORMAT = 4
"""Raised when tables or functions change in a way that an older driver cannot live with."""
_READABLE = (3, FORMAT)
"""Format 3 has other functions, which its drivers go on to use beside ours."""

# Names are compared byte by byte: faster, the same on every server, and a range of them is a prefix.
_TABLES = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.state (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    format integer NOT NULL,
    compacted bigint NOT NULL DEFAULT 0  -- the newest change that the feed has lost
);
CREATE TABLE {schema}.objects (
    tbl text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    value bytea,
    version bigint NOT NULL,
    deleted_at timestamptz,  -- set: a tombstone
    PRIMARY KEY (tbl, key)
);
CREATE INDEX objects_by_topic ON {schema}.objects (topic, tbl) WHERE deleted_at IS NULL;
CREATE INDEX tombstones_by_age ON {schema}.objects (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE TABLE {schema}.changes (
    revision bigint PRIMARY KEY,
    action text NOT NULL,
    tbl text NOT NULL,
    key text NOT NULL,
    topic text NOT NULL,
    left_topic text,
    value bytea,
    committed_at timestamptz NOT NULL
);
CREATE TABLE {schema}.outbox (revision bigint PRIMARY KEY);
CREATE TABLE {schema}.counters (name text COLLATE "C" PRIMARY KEY, value bigint NOT NULL);
CREATE SEQUENCE {schema}.revisions;
INSERT INTO {schema}.state (format) VALUES ({format});
"""

# VOLATILE, so that every statement in it sees what was committed before the lock was granted.  A refusal is a result,
# not an exception: PostgreSQL logs exceptions, and a lost race is nothing to log.  With ``p_only_looks`` it says what
# is refused and writes nothing.  No action in the answer: the object was so already.
_WRITE = """
CREATE FUNCTION {schema}.write(
    p_action text, p_tbl text, p_key text, p_topic text, p_value bytea, p_expected bigint, p_with_outbox boolean,
    p_if_changed boolean, p_only_looks boolean,
    OUT r_outcome text, OUT r_version bigint, OUT r_action text, OUT r_topic text, OUT r_left_topic text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    is_alive boolean;
    is_equal boolean;
    found_topic text;
    committed timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock({lock});
    SELECT o.topic, o.version, o.deleted_at IS NULL, p_if_changed AND o.value = p_value
        INTO found_topic, r_version, is_alive, is_equal
        FROM {schema}.objects o WHERE o.tbl = p_tbl AND o.key = p_key;
    is_alive := coalesce(is_alive, false);
    r_outcome := CASE
        WHEN p_action = 'create' THEN CASE WHEN is_alive THEN 'exists' ELSE 'done' END
        WHEN p_action = 'put' AND p_expected IS NULL THEN 'done'
        WHEN NOT is_alive THEN 'missing'
        WHEN p_expected <> r_version THEN 'conflict'
        ELSE 'done' END;
    IF r_outcome <> 'done' OR p_only_looks THEN RETURN; END IF;

    r_topic := coalesce(p_topic, found_topic);
    IF is_alive AND is_equal AND r_topic = found_topic THEN RETURN; END IF;
    r_action := CASE WHEN p_action = 'delete' THEN 'delete' WHEN is_alive THEN 'set' ELSE 'create' END;
    IF r_action = 'set' AND r_topic <> found_topic THEN r_left_topic := found_topic; END IF;
    -- The number, and below it bits by chance: see nb_api.revisions.
    r_version := (nextval('{schema}.revisions') << {nonce_bits}) + floor(random() * (1 << {nonce_bits}))::bigint;
    committed := clock_timestamp();
    INSERT INTO {schema}.objects AS o (tbl, key, topic, value, version, deleted_at)
        VALUES (p_tbl, p_key, r_topic, p_value, r_version, CASE p_action WHEN 'delete' THEN committed END)
        ON CONFLICT (tbl, key) DO UPDATE SET topic = excluded.topic, value = excluded.value,
            version = excluded.version, deleted_at = excluded.deleted_at;
    INSERT INTO {schema}.changes (revision, action, tbl, key, topic, left_topic, value, committed_at)
        VALUES (r_version, r_action, p_tbl, p_key, r_topic, r_left_topic, p_value, committed);
    IF p_with_outbox THEN
        INSERT INTO {schema}.outbox VALUES (r_version);
    END IF;
    NOTIFY {channel};
END $$;
"""

# Writes of the same transfer stand together and are done all or not at all, each transfer for itself.
_WRITE_ALL = """
CREATE FUNCTION {schema}.write_all(
    p_transfer integer[], p_action text[], p_tbl text[], p_key text[], p_topic text[], p_value bytea[],
    p_expected bigint[], p_with_outbox boolean[], p_if_changed boolean[]
) RETURNS TABLE (r_outcome text, r_version bigint, r_action text, r_topic text, r_left_topic text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    total integer := cardinality(p_action);
    first integer := 1;
    last integer;
    refused integer;
    refusal record;
BEGIN
    WHILE first <= total LOOP
        last := first;
        WHILE last < total AND p_transfer[last + 1] = p_transfer[first] LOOP last := last + 1; END LOOP;
        refused := 0;
        FOR i IN first .. last LOOP
            EXIT WHEN first = last;  -- write() looks by itself
            SELECT * INTO refusal FROM {schema}.write(p_action[i], p_tbl[i], p_key[i], p_topic[i], p_value[i],
                p_expected[i], p_with_outbox[i], p_if_changed[i], true);
            IF refusal.r_outcome <> 'done' THEN refused := i; EXIT; END IF;
        END LOOP;
        FOR i IN first .. last LOOP
            IF refused = 0 THEN
                SELECT * INTO r_outcome, r_version, r_action, r_topic, r_left_topic FROM {schema}.write(
                    p_action[i], p_tbl[i], p_key[i], p_topic[i], p_value[i],
                    p_expected[i], p_with_outbox[i], p_if_changed[i], false);
            ELSIF refused = i THEN
                r_outcome := refusal.r_outcome; r_version := refusal.r_version;
            ELSE
                r_outcome := 'untouched'; r_version := NULL;
            END IF;
            RETURN NEXT;
        END LOOP;
        first := last + 1;
    END LOOP;
END $$;
"""
DONE = "done"
UNTOUCHED = "untouched"


def install(connection: PostgresConnection, settings: PostgresDbSettings) -> None:
    """Create what is missing, once, however many processes try.  Raises InvalidConfig, psycopg.Error."""
    check_encoding(connection, settings)
    if not _missing(connection, settings):  # also the way of a user who may write but not create
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("install", settings.schema),))
        names = {
            "schema": settings.schema,
            "channel": settings.channel,
            "lock": lock_key("change", settings.schema),
            "format": FORMAT,
            "nonce_bits": NONCE_BITS,
        }
        missing = _missing(connection, settings)
        try:
            connection.execute("".join(missing).format(**names).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            if _TABLES in missing:
                raise
            raise InvalidConfig(
                f"{settings.address} was made by an earlier release and lacks functions: open it once as a user who "
                f"may create them in its schema ({error.diag.message_primary})"
            ) from error


def install_reports(connection: PostgresConnection, settings: PostgresDbSettings) -> None:
    """Create the table of reports, once.  Raises psycopg.Error.

    Not logged: a report need not survive the server, and is told again.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("install", settings.schema),))
        connection.execute(
            f"""CREATE UNLOGGED TABLE IF NOT EXISTS {settings.schema}.reports (
                name text COLLATE "C" PRIMARY KEY, data bytea NOT NULL) WITH (fillfactor = 50)"""
        )


def is_installed(connection: PostgresConnection, settings: PostgresDbSettings) -> bool:
    """Whether the schema has the tables, also of an earlier release.  Raises InvalidConfig for another format, and
    psycopg.Error."""
    return _TABLES not in _missing(connection, settings)


def _missing(connection: PostgresConnection, settings: PostgresDbSettings) -> list[str]:
    """What is to be created.  The tables of an earlier release are ours, and only its functions are others."""
    # Asked of the catalogue itself: to_regclass() may answer from a cache that is older than the lock.
    found = connection.execute(
        """SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %s AND c.relname = 'state'
           UNION ALL SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE n.nspname = %s AND p.proname = 'write_all'""",
        (settings.schema, settings.schema),
    ).fetchall()
    if ("state",) not in found:
        return [_TABLES, _WRITE, _WRITE_ALL]
    row = connection.execute(f"SELECT format FROM {settings.schema}.state").fetchone()
    if not row or row[0] not in _READABLE:
        raise InvalidConfig(f"{settings.address} has format {row and row[0]}; this Heliograph reads format {FORMAT}")
    return [] if ("write_all",) in found else [_WRITE, _WRITE_ALL]
