"""PostgreSQL in trouble: slow transactions, a killed and a frozen server, connections that run out, wrong set-ups."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from nb_api.db_api import DbApi, Write
from nb_api.errors import DbUnavailable, ObjectExists, RevisionTooOld
from nb_api.loading import open_db
from nb_api.testing.replay import WAIT_S, follow, stored
from pubsub_api.errors import Closed, Forked, InvalidConfig
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.db_faults import ServerInTrouble, attempt, ends_well, opened, opened_hastily
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until

Client = psycopg.Connection[tuple[object, ...]]
CHANGE = "SELECT r_version FROM heliograph.write('create', 't', %s, 't', '\\x01', NULL, true, false, false)"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.new_database()


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with opened(url) as db:
        yield db


@pytest.fixture
def client(server: PostgresServer, url: str, db: DbApi) -> Iterator[Client]:
    """Somebody else, with SQL, in the same database."""
    with server.client(url) as client:
        yield client


def number(client: Client, statement: str) -> int:
    row = client.execute(statement).fetchone()
    assert row is not None
    return int(str(row[0]))


def wait_blocked(server: PostgresServer, count: int) -> None:
    """Until so many wait for a lock that somebody else holds."""
    with server.client() as observer:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: number(observer, waiting) == count, WAIT_S, "writers to wait for the lock")


class TestSlowTransactions:
    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_nothing_overtakes_a_transaction_that_has_its_number(
        self, server: PostgresServer, url: str, db: DbApi, client: Client, end: str
    ) -> None:
        first = db.create("t", "first", 1, topic="t")
        client.execute("BEGIN")
        slow = number(client, CHANGE.replace("%s", "'slow'"))
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as pool:
            others = [stack.enter_context(opened(url)) for _ in range(3)]
            later = [pool.submit(other.create, "t", f"later{i}", i, topic="t") for i, other in enumerate(others)]
            wait_blocked(server, 3)
            assert [change.revision for change in db.changes(0)] == [first]
            assert db.revision() == first
            with db.snapshot() as snapshot:
                assert (snapshot.revision, len(list(snapshot))) == (first, 1)
            client.execute(end)
            versions = sorted(one.result(WAIT_S) for one in later)
        committed = [slow] if end == "COMMIT" else []
        assert versions[0] > slow
        assert [change.revision for change in db.changes(0)] == [first, *committed, *versions]

    def test_a_follower_of_overlapping_transactions_misses_nothing(
        self, server: PostgresServer, url: str, db: DbApi
    ) -> None:
        workers, each = 5, 30

        def work(seed: int) -> list[int]:
            """Transactions that dawdle before and after their change, with more than one change, and without an end."""
            chance, committed = random.Random(seed), list[int]()
            with server.client(url) as client:
                for turn in range(each):
                    client.execute("BEGIN")
                    client.execute("SELECT pg_sleep(%s)", (chance.random() * 0.003,))
                    made = [number(client, CHANGE.replace("%s", f"'{seed}-{turn}-{i}'")) for i in range(1 + turn % 2)]
                    client.execute("SELECT pg_sleep(%s)", (chance.random() * 0.003,))
                    is_kept = chance.random() < 0.7
                    client.execute("COMMIT" if is_kept else "ROLLBACK")
                    committed += made if is_kept else []
            return committed

        with ThreadPoolExecutor(workers + 1) as pool:
            following = pool.submit(follow, db, lambda seen: bool(seen) and seen[-1].key == "last", limit=3)
            working = [pool.submit(work, seed) for seed in range(workers)]
            written = sorted(version for one in working for version in one.result(2 * WAIT_S))
            last = db.create("t", "last", 1, topic="t")
            seen = [change.revision for change in following.result(2 * WAIT_S)]
        assert seen == [*written, last]
        assert {held.version for held in stored(db).values()} == set(seen)

    def test_a_writer_gives_up_behind_one_that_never_ends(self, url: str, db: DbApi, client: Client) -> None:
        with opened_hastily(url, operation_timeout=0.2) as impatient:
            client.execute("BEGIN")
            client.execute(CHANGE, ("slow",))
            with pytest.raises(DbUnavailable):
                impatient.create("t", "k", 1, topic="t")
            assert db.changes(0) == []
            client.execute("COMMIT")
            names = (f"k{number}" for number in itertools.count())
            written = wait_until(lambda: attempt(lambda: impatient.create("t", next(names), 1, topic="t")), WAIT_S)
            assert written in [change.revision for change in db.changes(0)]


class TestSharedTransactions:
    def test_threads_that_wait_share_one(self, server: PostgresServer, db: DbApi, client: Client) -> None:
        client.execute("BEGIN")
        client.execute(CHANGE, ("slow",))
        with ThreadPoolExecutor(12) as pool:
            first = pool.submit(db.create, "t", "first", 0, topic="t")
            wait_blocked(server, 1)
            rest = [pool.submit(db.create, "t", f"k{i % 9}", i, topic="t") for i in range(10)]
            wait_until(lambda: all(one.running() for one in rest), WAIT_S, "the rest to be on their way")
            client.execute("COMMIT")
            assert first.result(WAIT_S) > 0
            failures = [type(error) for one in rest if (error := one.exception(WAIT_S))]
        assert failures == [ObjectExists]
        assert {change.key for change in db.changes(0)} == {"slow", "first", *(f"k{i}" for i in range(9))}

    def test_one_that_the_server_refuses_fails_alone(self, server: PostgresServer, db: DbApi, client: Client) -> None:
        client.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.key = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$"
        )
        client.execute("CREATE TRIGGER r BEFORE INSERT ON heliograph.changes FOR EACH ROW EXECUTE FUNCTION refuse()")
        client.execute("BEGIN")
        client.execute(CHANGE, ("slow",))
        with ThreadPoolExecutor(12) as pool:
            names = ["first", "a", "bad", "b"]
            writing = [pool.submit(db.create, "t", name, 0, topic="t") for name in names]
            wait_blocked(server, 1)
            wait_until(lambda: all(one.running() for one in writing), WAIT_S, "all to be on their way")
            client.execute("COMMIT")
            failed = [name for name, one in zip(names, writing, strict=True) if one.exception(WAIT_S)]
        assert failed == ["bad"]
        assert {change.key for change in db.changes(0)} == {"slow", "first", "a", "b"}


class TestServerInTrouble(ServerInTrouble):
    kills = 3

    def wait_for_waiter(self, server: PostgresServer, url: str) -> None:
        with server.client(url) as client:
            wait_listening(client, 1)

    def test_an_open_snapshot_ends_with_the_server(self, server: PostgresServer, url: str) -> None:
        with opened(url, snapshot_portion=1) as db:
            for i in range(3):
                db.create("t", f"k{i}", i, topic="t")
            objects = iter(db.snapshot())
            next(objects)
            server.restart()
            with pytest.raises(DbUnavailable):
                list(objects)
            assert len(stored(db)) == 3


def wait_listening(client: Client, count: int) -> None:
    listening = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'SELECT greatest%'"
    wait_until(lambda: number(client, listening) >= count, WAIT_S, "somebody to listen")


class TestConnections:
    def test_who_waits_and_who_reads_holds_one_and_the_next_is_refused(self, url: str) -> None:
        with opened_hastily(url, connections_max=2, operation_timeout=0.2) as db:
            with contextlib.ExitStack() as stack:
                for _ in range(2):
                    stack.enter_context(wait_until(lambda: attempt(db.snapshot), WAIT_S, "a connection"))
                with pytest.raises(DbUnavailable, match="connections_max"):
                    db.revision()
            wait_until(lambda: ends_well(lambda: db.revision() == 0), WAIT_S, "a connection to be free")

    def test_idle_connections_are_few(self, server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("heliograph_drivers.db.handles.IDLE_MAX", 2)
        ours = "application_name = 'heliograph' AND datname = current_database()"
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"
        with server.client(url) as client:
            with opened(url) as db:
                with contextlib.ExitStack() as stack:
                    for _ in range(6):
                        stack.enter_context(db.snapshot())
                    wait_until(lambda: number(client, sessions) == 6, WAIT_S, "one for each")
                wait_until(lambda: number(client, sessions) == 2, WAIT_S, "the rest to be closed")
            wait_until(lambda: number(client, sessions) == 0, WAIT_S, "all to be closed")

    def test_close_cuts_a_snapshot_and_ends_a_wait(self, url: str, client: Client) -> None:
        with opened(url, snapshot_portion=1) as db, ThreadPoolExecutor(1) as pool:
            for i in range(3):
                db.create("t", f"k{i}", i, topic="t")
            objects = iter(db.snapshot())
            next(objects)
            waiting: Future[bool] = pool.submit(db.wait, db.revision(), timeout_s=WAIT_S)
            wait_listening(client, 1)
            db.close()
            assert waiting.result(WAIT_S) is False
            with pytest.raises(Closed):
                list(objects)

    def test_a_snapshot_left_standing_is_ended_by_the_server(
        self, url: str, db: DbApi, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nb_api.config.SNAPSHOT_IDLE_TIMEOUT_S", 0.2)
        open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        for i in range(3):
            db.create("t", f"k{i}", i, topic="t")
        with opened(url, snapshot_portion=1) as hasty:

            def dawdle() -> None:
                objects = iter(hasty.snapshot())
                next(objects)
                wait_until(lambda: number(client, open_ones) == 0, WAIT_S, "the server to end it")
                list(objects)

            with pytest.raises(DbUnavailable):  # sooner than at the end when it is us who stand still
                dawdle()
            assert hasty.revision() == db.revision()
        assert len(stored(db)) == 3

    def test_a_snapshot_is_of_no_use_to_a_forked_child(self, url: str) -> None:
        with opened(url, snapshot_portion=1) as db:
            for i in range(3):
                db.create("t", f"k{i}", i, topic="t")
            snapshot = db.snapshot()

            def read_and_close() -> str:
                answer = outcome(lambda: list(snapshot))
                snapshot.close()
                return answer

            assert Forked.__name__ in in_forked_child(read_and_close)
            assert len(list(snapshot)) == 3


class TestSetUp:
    def test_a_clock_that_was_ahead_keeps_nothing_waiting(self, db: DbApi, client: Client) -> None:
        version = db.create("t", "k", 1, topic="t")
        client.execute("UPDATE heliograph.changes SET committed_at = clock_timestamp() + interval '1 hour'")
        assert db.unpublished(older_than_s=0.3) == []
        wait_until(lambda: len(db.unpublished(older_than_s=0.3)) == 1, WAIT_S, "the change to be found old")
        assert [change.revision for change in db.unpublished()] == [version]

    def test_many_changes_are_compacted_in_portions(self, db: DbApi, client: Client) -> None:
        client.execute(
            "INSERT INTO heliograph.changes SELECT n, 'create', 't', 'k' || n, 't', NULL, '\\x01', clock_timestamp() "
            "FROM generate_series(1, 25000) n"
        )
        assert db.compact(keep_changes=100, keep_tombstones_s=0) == 24_900
        assert [change.revision for change in db.changes(24_900)] == list(range(24_901, 25_001))
        with pytest.raises(RevisionTooOld) as too_old:
            db.changes(24_899)
        assert too_old.value.oldest_revision == 24_900
        assert db.revision() == 25_000

    def test_commits_are_durable_whatever_the_server_prefers(self, server: PostgresServer, url: str) -> None:
        with server.client(url) as client:
            client.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        try:
            with opened(url) as db, server.client(url) as client:
                db.create("t", "k", 1, topic="t")
                client.execute("CREATE TABLE seen (setting text)")
                client.execute(
                    "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$"
                )
                client.execute(
                    "CREATE TRIGGER see BEFORE INSERT ON heliograph.changes FOR EACH ROW EXECUTE FUNCTION see()"
                )
                db.set("t", "k", 2)
                assert client.execute("SELECT setting FROM seen").fetchall() == [("on",)]
        finally:
            with server.client(url) as client:
                client.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")

    @pytest.mark.parametrize("schema", ["", "Upper", "1st", "a-b", 'a"b', "a" * 49, "a;b"])
    def test_an_impossible_schema_is_refused(self, url: str, schema: str) -> None:
        with pytest.raises(InvalidConfig, match="schema"):
            open_db(f"{url}?schema={schema}")

    def test_another_encoding_is_refused(self, server: PostgresServer) -> None:
        latin = server.new_database("ENCODING 'LATIN1' TEMPLATE template0")
        with pytest.raises(InvalidConfig, match="LATIN1"):
            open_db(latin)

    def test_the_tables_of_another_format_are_refused(self, url: str, client: Client) -> None:
        client.execute("UPDATE heliograph.state SET format = 99")
        with pytest.raises(InvalidConfig, match="99"):
            open_db(url)

    def test_a_user_who_may_not_create_uses_what_is_there(
        self, server: PostgresServer, url: str, client: Client
    ) -> None:
        client.execute("DROP ROLE IF EXISTS guest")
        client.execute("CREATE ROLE guest LOGIN")
        guest = url.replace("//heliograph@", "//guest:secret@")
        with pytest.raises(InvalidConfig, match="permission denied") as refused:
            open_db(f"{guest}?schema=other")
        assert "secret" not in str(refused.value)
        client.execute("GRANT USAGE ON SCHEMA heliograph TO guest")
        client.execute("GRANT ALL ON ALL TABLES IN SCHEMA heliograph TO guest")
        client.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA heliograph TO guest")
        with opened(guest) as db:
            assert db.wait(db.create("t", "k", 1, topic="t") - 1, timeout_s=0)
        client.execute("DROP OWNED BY guest")

    def test_an_absent_server_is_reported_without_the_password(self, server: PostgresServer) -> None:
        with pytest.raises(DbUnavailable) as failed:
            open_db("postgresql://somebody:secret@127.0.0.1:1/nothing")
        assert "secret" not in str(failed.value)
        with pytest.raises(DbUnavailable, match="does not exist"):
            open_db(server.url("nothing"))


class TestFewConnections:
    def test_those_that_nobody_uses_are_closed(
        self, server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.db.handles.IDLE_S", 0.1)
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'heliograph' AND datname = "
            f"'{url.rpartition('/')[2]}'"
        )
        with opened(url) as db, server.client() as client:
            with contextlib.ExitStack() as stack:
                for _ in range(5):
                    list(stack.enter_context(db.snapshot()))
            db.create("t", "k", 1, topic="t")
            wait_until(lambda: db.release_idle() or number(client, query) == 0, WAIT_S, "all of them to be closed")  # type: ignore[func-returns-value]
            assert db.get("t", "k").value == 1

    def test_a_server_that_is_full_is_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nb_api.config.CONNECT_TIMEOUT_S", WAIT_S)
        with (
            PostgresServer(max_connections="5", superuser_reserved_connections="0") as server,
            ThreadPoolExecutor(1) as pool,
            contextlib.ExitStack() as held,
        ):

            def is_connected() -> bool:
                """Not while the place of who has left is not free yet."""
                try:
                    held.enter_context(contextlib.closing(server.client()))
                except psycopg.OperationalError:
                    return False
                return True

            def is_told() -> bool:
                """Unless the server takes so long to say it that it counts as absent."""
                with pytest.raises(DbUnavailable) as raised:
                    held.enter_context(opened(server.url(), operation_timeout=0.2))
                return any(words in str(raised.value) for words in ("too many", "slots"))

            for _ in range(5):
                wait_until(is_connected, WAIT_S, "a connection")
            wait_until(is_told, WAIT_S, "the server to say that it is full")

            def write() -> int:
                with opened(server.url(), operation_timeout=WAIT_S) as db:
                    return db.create("t", "k", 1, topic="t")

            writing = pool.submit(write)
            held.close()
            assert writing.result(WAIT_S) > 0


def test_a_database_of_an_earlier_release_gets_the_functions_it_lacks(url: str, db: DbApi, client: Client) -> None:
    """Its tables are the same."""
    version = db.create("t", "k", 1, topic="t")
    client.execute("DROP FUNCTION heliograph.write_all, heliograph.write")
    with opened(url) as later:
        assert later.put("t", "k", 2, topic="t") > version
        assert len(later.apply([Write("put", "t", "a", 1, "t"), Write("delete", "t", "k")])) == 2


def test_a_user_who_may_not_create_is_told_what_to_do(url: str, db: DbApi, client: Client) -> None:
    assert db.revision() == 0
    client.execute("DROP FUNCTION heliograph.write_all, heliograph.write")
    client.execute("CREATE ROLE clerk LOGIN")
    client.execute("GRANT USAGE ON SCHEMA heliograph TO clerk")
    client.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA heliograph TO clerk")
    clerk = url.replace("heliograph@", "clerk@")
    with pytest.raises(InvalidConfig, match="earlier release.*may create"), opened(clerk):
        pass


def test_functions_that_are_dropped_under_a_writer_are_made_again(db: DbApi, client: Client) -> None:
    """As in a database that is put back from before an upgrade, without a restart of those who write."""
    writes = [Write("put", "t", "a", 1, "t"), Write("put", "t", "b", 1, "t")]
    versions = [db.put("t", "k", 1, topic="t"), *db.apply(writes)]
    client.execute("DROP FUNCTION heliograph.write_all, heliograph.write")
    versions.append(db.put("t", "k", 2, topic="t"))
    client.execute("DROP FUNCTION heliograph.write_all, heliograph.write")
    versions += db.apply([Write("put", "t", "a", 2, "t"), Write("put", "t", "b", 2, "t")])
    assert [change.revision for change in db.changes(0)] == versions


def test_tables_that_are_dropped_under_a_writer_are_not_made_again(db: DbApi, client: Client) -> None:
    db.put("t", "k", 1, topic="t")
    client.execute("DROP SCHEMA heliograph CASCADE")
    with pytest.raises(InvalidConfig):
        db.put("t", "k", 2, topic="t")
    assert number(client, "SELECT count(*) FROM pg_namespace WHERE nspname = 'heliograph'") == 0


def test_a_statement_that_is_prepared_already_is_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that had the connection before, as pools between us and the server lend them."""
    with opened(url) as db:
        version = db.put("t", "k", 1, topic="t")
        pool, statement = vars(db)["_pool"], vars(db)["_statements"].write
    make, used = type(pool)._open, []

    def open_used(pool: Any) -> Any:
        connection = make(pool)
        connection.pgconn.prepare(statement.name, statement.source)
        used.append(connection)
        return connection

    monkeypatch.setattr(type(pool), "_open", open_used)
    with opened(url) as db:
        assert db.put("t", "k", 2, topic="t") > version
    assert used
