"""Redis in trouble: killed, frozen, started again without its last changes; and set-ups that must be refused."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import ssl
from collections.abc import Callable, Iterator

import pytest
import redis

from nb_api.db_api import DbApi
from nb_api.errors import DbUnavailable, RevisionGone, RevisionTooOld, RevisionUnknown
from nb_api.loading import open_db
from nb_api.testing.replay import WAIT_S, apply, state_of, stored
from pubsub_api.errors import InvalidConfig
from tests.helpers.db_faults import ServerInTrouble, opened, opened_hastily
from tests.helpers.paths import TLS
from tests.helpers.servers import RedisServer, TlsProxy
from tests.helpers.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """It keeps what it has answered.  With ``everysec`` it would not: while the disk is busy it does not even write."""
    with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    return server.new_prefix()


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with opened(url) as db:
        yield db


def blocked_clients(server: RedisServer) -> int:
    with contextlib.closing(server.client()) as client:
        return int(client.info("clients")["blocked_clients"])  # type: ignore[index]


def is_linked(replica: redis.Redis) -> bool:
    try:
        return bool(replica.info("replication")["master_link_status"] == "up")  # type: ignore[index]
    except redis.BusyLoadingError:
        return False


class TestServerInTrouble(ServerInTrouble):
    def wait_for_waiter(self, server: RedisServer, url: str) -> None:
        wait_until(lambda: blocked_clients(server) == 1, WAIT_S, "the wait to reach the server")

    def test_a_wait_notices_that_the_server_is_frozen(self, server: RedisServer, url: str) -> None:
        with opened_hastily(url, operation_timeout=0.2) as db:
            server.freeze()
            try:
                with pytest.raises(DbUnavailable):
                    db.wait(0, timeout_s=60 * WAIT_S)
            finally:
                server.thaw()

    def test_a_snapshot_ends_with_the_server(self, server: RedisServer, url: str) -> None:
        with opened(url, snapshot_portion=1) as db:
            for number in range(3):
                db.create("t", f"k{number}", number, topic="t")
            objects = iter(db.snapshot())
            next(objects)
            server.restart()
            with pytest.raises(DbUnavailable, match="started again"):
                list(objects)
            assert len(stored(db)) == 3

    def test_a_restart_begins_a_new_run_and_the_feed_goes_on(self, server: RedisServer, db: DbApi) -> None:
        versions = []
        for turn in range(3):
            versions += [db.create("t", f"{turn}-{i}", i, topic="t") for i in range(3)]
            server.restart()
        assert versions == sorted(set(versions))
        for position, version in enumerate(versions):
            assert [change.revision for change in db.changes(version)] == versions[position + 1 :]
        db.mark_published(versions)
        assert db.compact(keep_changes=2, keep_tombstones_s=0) == 7
        assert [change.revision for change in db.changes(versions[6])] == versions[7:]
        with pytest.raises(RevisionTooOld):
            db.changes(versions[5])

    def test_scripts_that_were_flushed_are_sent_again(self, server: RedisServer, db: DbApi) -> None:
        db.create("t", "k", 1, topic="t")
        with contextlib.closing(server.client()) as client:
            client.script_flush()
        db.set("t", "k", 2)


class TestWhatRedisForgets:
    """The file of the server is put back to an older state, as if the machine had failed before it was on disk."""

    @pytest.fixture
    def server(self) -> Iterator[RedisServer]:
        with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:
            yield server

    @staticmethod
    def forget(server: RedisServer, write: Callable[[], list[int]]) -> list[int]:
        """Write and take it back; returns the versions that were given."""
        log = server.directory / "appendonly.aof"
        copy = pathlib.Path(shutil.copy(log, server.directory / "copy"))
        versions = write()
        server.kill()
        shutil.copy(copy, log)
        server.restart()
        return versions

    def test_a_revision_that_was_lost_is_never_known_again(self, server: RedisServer, db: DbApi) -> None:
        known = [db.create("t", f"k{i}", i, topic="t") for i in range(3)]
        lost = self.forget(server, lambda: [db.create("t", f"lost{i}", i, topic="t") for i in range(5)])
        assert db.revision() == known[-1]
        self.expect_lost(db, lost)
        later = [db.create("t", f"later{i}", i, topic="t") for i in range(20)]
        assert min(later) > max(lost)
        self.expect_lost(db, lost)
        assert [change.revision for change in db.changes(known[-1])] == later
        assert [change.revision for change in db.changes(known[0])] == [*known[1:], *later]
        again = self.forget(server, lambda: [db.create("t", "once more", 1, topic="t")])
        db.create("t", "in the end", 1, topic="t")
        self.expect_lost(db, [*lost, *again])
        assert apply({}, db.changes(0)) == stored(db)

    @staticmethod
    def expect_lost(db: DbApi, revisions: list[int]) -> None:
        for revision in revisions:
            with pytest.raises(RevisionUnknown):
                db.changes(revision)
            with pytest.raises(RevisionUnknown):
                db.wait(revision, timeout_s=60 * WAIT_S)

    def test_an_old_copy_gives_no_revision_twice(self, server: RedisServer, db: DbApi) -> None:
        """A restored copy does not know of the runs since it was made."""
        db.create("t", "k", 0, topic="t")

        def live_on() -> list[int]:
            versions = []
            for turn in range(3):
                server.restart()
                versions.append(db.set("t", "k", turn))
            return versions

        lost = self.forget(server, live_on)
        assert db.set("t", "k", "new") > max(lost)
        self.expect_lost(db, lost)

    def test_keys_put_back_into_a_running_server_are_an_older_history(self, server: RedisServer, db: DbApi) -> None:
        """As tools do that copy key by key.  The process is the same, so it is not the process that can tell."""
        known = [db.create("t", f"k{i}", i, topic="t") for i in range(3)]
        with contextlib.closing(server.client()) as client:
            copy = {key: client.dump(key) for key in client.scan_iter()}
            lost = [db.create("t", f"lost{i}", i, topic="t") for i in range(5)]
            with client.pipeline() as pipeline:
                pipeline.flushall()
                for key, value in copy.items():
                    pipeline.restore(key, 0, value)
                pipeline.execute()
        self.expect_lost(db, lost)
        later = [db.create("t", f"later{i}", i, topic="t") for i in range(20)]
        self.expect_lost(db, lost)
        assert db.check_history([*known, *lost]).lost == lost[0]
        assert db.check_history([*known, *later]).lost is None
        assert [change.revision for change in db.changes(known[-1])] == later

    def test_an_empty_server_knows_nothing(self, server: RedisServer, db: DbApi) -> None:
        seen = [db.create("t", f"k{i}", i, topic="t") for i in range(3)]
        with contextlib.closing(server.client()) as client:
            client.flushall()
        assert db.revision() == 0
        self.expect_lost(db, seen)
        assert db.create("t", "k0", 1, topic="t") > max(seen)
        for revision in seen:
            with pytest.raises(RevisionGone):
                db.changes(revision)


class TestSnapshots:
    def test_what_is_overwritten_is_kept_while_somebody_reads(self, server: RedisServer, url: str) -> None:
        with opened(url, snapshot_portion=2) as db, contextlib.closing(server.client()) as client:
            for number in range(10):
                db.create("t", f"k{number}", 0, topic="t")
            before, key = stored(db), url.partition("prefix=")[2] + ":undo"
            db.set("t", "k0", 0)
            before["t", "k0"] = stored(db)["t", "k0"]
            assert not client.exists(key)
            with db.snapshot() as first:
                rows = iter(first)
                seen = [next(rows)]
                for turn in range(1, 4):
                    for number in range(10):
                        db.set("t", f"k{number}", turn)
                db.delete("t", "k9")
                with db.snapshot() as second:
                    db.create("t", "k9", "again", topic="t")
                    assert len(state_of(second)) == 9
                assert state_of([*seen, *rows]) == before
            assert not client.exists(key)

    def test_a_reader_that_stands_still_is_forgotten(
        self, server: RedisServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nb_api.config.SNAPSHOT_IDLE_TIMEOUT_S", 0.05)
        prefix = url.partition("prefix=")[2]
        with (
            opened(url, snapshot_portion=1) as db,
            contextlib.closing(server.client()) as client,
        ):
            for number in range(3):
                db.create("t", f"k{number}", number, topic="t")
            objects = iter(db.snapshot())
            next(objects)

            def is_forgotten() -> bool:
                db.set("t", "k0", 1)
                return not client.exists(f"{prefix}:undo", f"{prefix}:snapshots")

            wait_until(is_forgotten, WAIT_S, "a write to forget the reader")
            with pytest.raises(DbUnavailable, match="stood still"):
                list(objects)


class TestSetUp:
    def test_a_socket_of_the_file_system(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "redis.sock"
        with RedisServer(config={"unixsocket": str(path)}), opened(f"unix://{path}?db=3&prefix=x") as db:
            version = db.create("t", "k", 1, topic="t")
            assert db.get("t", "k").version == version

    def test_an_encrypted_connection(self, server: RedisServer) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(TLS / "ca.pem"))
        context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        own = {"tls_cert_file": str(TLS / "client.pem"), "tls_key_file": str(TLS / "client-key.pem")}
        with TlsProxy(server.port, context) as proxy:
            url = server.new_prefix().replace("redis://", "rediss://").replace(str(server.port), str(proxy.port))
            with opened(url, tls_ca_file=str(TLS / "ca.pem"), **own) as db:
                version = db.create("t", "k", bytes(300_000), topic="t")
                assert [change.revision for change in db.changes(0)] == [version]
            with pytest.raises(DbUnavailable, match="(?i)certificate"):
                open_db(url)

    def test_databases_of_one_server_are_apart(self, server: RedisServer) -> None:
        plain = f"redis://127.0.0.1:{server.port}"
        with opened(f"{plain}/1") as one, opened(f"{plain}/2") as two, opened(f"{plain}/1?prefix=x") as three:
            one.create("t", "k", 1, topic="t")
            assert (two.revision(), three.revision()) == (0, 0)

    def test_a_wrong_password_is_refused_and_not_shown(self) -> None:
        with RedisServer(password="right") as server:
            with pytest.raises(InvalidConfig) as refused:
                open_db(f"redis://:wrong-one@127.0.0.1:{server.port}/0")
            assert "wrong-one" not in str(refused.value)
            with contextlib.closing(open_db(f"redis://:right@127.0.0.1:{server.port}/0")) as db:
                assert db.revision() == 0

    def test_a_server_that_may_drop_keys_is_refused(self) -> None:
        with (
            RedisServer(config={"maxmemory-policy": "allkeys-lru"}) as server,
            pytest.raises(InvalidConfig, match="allkeys-lru"),
        ):
            open_db(server.address)

    def test_a_server_without_memory_is_unavailable_and_recovers(self, db: DbApi, server: RedisServer) -> None:
        version = db.create("t", "k", 1, topic="t")
        with contextlib.closing(server.client()) as client:
            client.config_set("maxmemory", "1mb")
            try:
                with pytest.raises(DbUnavailable):
                    db.set("t", "k", bytes(500_000))
                assert db.get("t", "k").version == version
            finally:
                client.config_set("maxmemory", "0")
        assert db.set("t", "k", 2, expected_version=version) > version

    def test_a_replica_does_not_take_writes(self, server: RedisServer) -> None:
        with (
            RedisServer(config={"replicaof": f"127.0.0.1 {server.port}"}) as replica,
            contextlib.closing(replica.client()) as client,
        ):
            wait_until(lambda: is_linked(client), WAIT_S, "the replica to have what the server has")
            with opened(replica.address) as db, pytest.raises(DbUnavailable):
                db.create("t", "k", 1, topic="t")

    @pytest.mark.parametrize(
        "url",
        [
            "redis://127.0.0.1:1/x", "redis://127.0.0.1:1/0?a=b", "redis://127.0.0.1:1/0?prefix=a%20b", "unix://",
            "unix:///tmp/x?db=y", "unix://host/path", "unix:///tmp/x?other=1",
        ],
    )  # fmt: skip
    def test_a_url_that_is_not_understood_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidConfig):
            open_db(url)

    def test_nobody_there_is_unavailable(self) -> None:
        with RedisServer() as server:
            address = server.address
        with pytest.raises(DbUnavailable):
            open_db(address)
