"""etcd in trouble: a killed and a frozen server, compactions that others make, values that are too large."""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nb_api.db_api import DbApi, Write
from nb_api.errors import DbUnavailable, RevisionTooOld, RevisionUnknown
from nb_api.loading import open_db
from nb_api.revisions import NONCE_BITS, HistoryCheck
from nb_api.testing.replay import WAIT_S, follow, stored
from pubsub_api.errors import Closed, InvalidConfig, LimitReached
from tests.helpers.db_faults import ServerInTrouble, opened
from tests.helpers.histories import EtcdDirectory
from tests.helpers.servers_db import EtcdServer
from tests.helpers.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer("--unsafe-no-fsync") as server:
        yield server


@pytest.fixture
def url(server: EtcdServer) -> str:
    return server.new_prefix()


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with opened(url) as db:
        yield db


def ask(server: EtcdServer, path: str, **request: Any) -> Any:
    """A request of somebody else."""
    url = f"http://127.0.0.1:{server.port}/v3/{path}"
    with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=WAIT_S) as answer:
        return json.load(answer)


class TestServerInTrouble(ServerInTrouble):
    def is_forgetful(self, server: EtcdServer) -> bool:
        return json.loads(read(f"http://127.0.0.1:{server.port}/version"))["etcdserver"] in ("3.5.0", "3.5.1", "3.5.2")

    def wait_for_waiter(self, server: EtcdServer, url: str) -> None:
        watchers = f"http://127.0.0.1:{server.port}/metrics"
        wait_until(lambda: b"etcd_debugging_mvcc_watcher_total 1\n" in read(watchers), WAIT_S, "the watch")


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return bytes(answer.read())


class TestCompactionByOthers:
    def test_what_is_lost_is_said_and_the_rest_is_kept(self, server: EtcdServer, db: DbApi) -> None:
        versions = [db.create("t", f"k{i}", i, topic="t") for i in range(10)]
        ask(server, "kv/compaction", revision=versions[6] >> (NONCE_BITS + 6))  # 64 writes in each transaction
        with pytest.raises(RevisionTooOld) as too_old:
            db.changes(0)
        # Whether there was a change before the oldest that is left, and which, nobody can say.
        assert too_old.value.oldest_revision == versions[6]
        assert [change.revision for change in db.changes(versions[6])] == versions[7:]
        assert db.check_history(versions) == HistoryCheck(versions[-1], versions[6], None)
        assert [change.revision for change in db.unpublished()] == versions
        assert len(stored(db)) == 10
        assert db.compact(keep_changes=2, keep_tombstones_s=0) == 2
        assert [change.revision for change in db.changes(versions[7])] == versions[8:]

    def test_a_compaction_without_a_change_of_ours_loses_nothing(self, server: EtcdServer, url: str, db: DbApi) -> None:
        first = db.create("t", "first", 1, topic="t")
        with opened(server.new_prefix()) as other:
            for i in range(3):
                other.create("t", f"k{i}", i, topic="t")
            other.compact(keep_changes=0, keep_tombstones_s=0)
        assert db.changes(first) == []
        later = db.create("t", "later", 1, topic="t")
        assert [change.revision for change in db.changes(first)] == [later]
        with pytest.raises(RevisionTooOld):
            db.changes(0)

    def test_keys_that_somebody_deleted_are_a_lost_history(self, server: EtcdServer, db: DbApi) -> None:
        """etcd still knows the heads from before, but they belong to nothing any more."""
        seen = [db.create("t", f"k{number}", number, topic="t") for number in range(5)]
        everything = base64.b64encode(b"\0").decode()
        ask(server, "kv/deleterange", key=everything, range_end=everything)
        self.expect_lost(db, seen)
        later = [db.create("t", f"k{number}", number, topic="t") for number in range(500)]
        self.expect_lost(db, seen)
        assert db.check_history(later).lost is None
        assert [change.revision for change in db.changes(0)] == later
        assert [change.revision for change in db.changes(later[-3])] == later[-2:]
        assert db.compact(keep_changes=100, keep_tombstones_s=0) == 400
        assert [change.revision for change in db.changes(later[399])] == later[400:]

    @staticmethod
    def expect_lost(db: DbApi, revisions: list[int]) -> None:
        assert db.check_history(revisions).lost == revisions[0]
        for revision in revisions:
            with pytest.raises(RevisionUnknown):
                db.changes(revision)

    def test_a_snapshot_that_is_compacted_away_says_so(self, server: EtcdServer, url: str) -> None:
        with opened(url, snapshot_portion=1) as db:
            for i in range(3):
                db.create("t", f"k{i}", i, topic="t")
            objects = iter(db.snapshot())
            next(objects)
            db.create("t", "more", 1, topic="t")
            db.compact(keep_changes=0, keep_tombstones_s=0)
            with pytest.raises(DbUnavailable, match="snapshot"):
                list(objects)


class TestFollower:
    def test_a_follower_reads_nothing_but_its_watch(self, server: EtcdServer, url: str, db: DbApi) -> None:
        """A read now and then is for a watch that was silent, as it seems to be when the machine stands still."""
        with opened(url) as other:
            position = other.create("t", "k", 0, topic="t")
            assert db.wait(position, timeout_s=0.2) is False
            before = ranges(server)
            for number in range(100):
                written = other.create("t", f"k{number}", number, topic="t")
                assert db.wait(position, timeout_s=WAIT_S) is True
                [change] = db.changes(position)
                assert (change.revision, change.key, change.value) == (written, f"k{number}", number)
                position = written
            assert ranges(server) - before < 200  # the transactions compare one key each

    def test_what_is_written_after_a_wait_is_not_hidden_by_it(self, db: DbApi, url: str) -> None:
        """The first reading answers with what the wait has heard, the next one with what there is."""
        first = db.create("t", "k", 0, topic="t")
        with opened(url) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(db.wait, first, timeout_s=WAIT_S)
            second = other.set("t", "k", 1)
            assert waiting.result(WAIT_S) is True
            third = other.set("t", "k", 2)
            assert [change.revision for change in db.changes(first)] == [second, third]  # of another thread
            assert db.wait(first, timeout_s=WAIT_S) is True
            fourth = other.set("t", "k", 3)
            seen = [change.revision for change in db.changes(first)]
            seen += [change.revision for change in db.changes(seen[-1])]
            assert seen == [second, third, fourth]

    def test_transactions_and_limits(self, db: DbApi, url: str) -> None:
        first = db.create("t", "k", 0, topic="t")
        assert db.wait(first, timeout_s=0.2) is False
        with opened(url) as other:
            versions = other.apply([Write("create", "t", f"k{number}", number, "t") for number in range(30)])
        seen = follow(db, lambda seen: len(seen) == 30, after=first, limit=7)
        assert [change.revision for change in seen] == versions

    def test_keys_that_somebody_deletes_end_the_watch(self, server: EtcdServer, url: str, db: DbApi) -> None:
        first = db.create("t", "k", 0, topic="t")
        assert db.wait(first, timeout_s=0.2) is False
        everything = base64.b64encode(b"\0").decode()
        ask(server, "kv/deleterange", key=everything, range_end=everything)
        with pytest.raises(RevisionUnknown):
            wait_until(lambda: db.wait(first, timeout_s=1.0), WAIT_S, "the loss to be told")


def ranges(server: EtcdServer) -> int:
    """How often something was read."""
    lines = read(f"http://127.0.0.1:{server.port}/metrics").decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("etcd_mvcc_range_total ")).split()[1]))


class TestLimits:
    def test_a_request_that_etcd_finds_too_large_is_a_typed_error(self, url: str) -> None:
        with opened(url, value_bytes_max=8 * 1024 * 1024) as db:
            with pytest.raises(LimitReached):
                db.create("t", "k", bytes(4 * 1024 * 1024), topic="t")
            assert db.revision() == 0
            assert db.create("t", "k", bytes(500 * 1024), topic="t") == db.revision()

    def test_a_long_feed_is_read_in_full(self, db: DbApi) -> None:
        with ThreadPoolExecutor(8) as pool:
            versions = list(pool.map(lambda i: db.create("t", f"k{i}", i, topic="t"), range(900)))
        assert [change.revision for change in db.changes(0, limit=10_000)] == sorted(versions)
        assert [change.revision for change in db.changes(0, limit=7)] == sorted(versions)[:7]
        assert db.compact(keep_changes=250, keep_tombstones_s=0) == 650
        assert [change.revision for change in db.changes(sorted(versions)[649])] == sorted(versions)[650:]

    def test_close_ends_a_wait_and_a_snapshot(self, url: str) -> None:
        with opened(url, snapshot_portion=1) as db, ThreadPoolExecutor(1) as pool:
            for i in range(3):
                db.create("t", f"k{i}", i, topic="t")
            objects = iter(db.snapshot())
            next(objects)
            waiting = pool.submit(db.wait, db.revision(), timeout_s=WAIT_S)
            wait_until(waiting.running, WAIT_S, "the wait to begin")
            assert db.wait(db.revision(), timeout_s=0.05) is False
            db.close()
            with contextlib.suppress(Closed):  # when it had not come as far as the database
                assert waiting.result(WAIT_S) is False
            with pytest.raises(Closed):
                list(objects)

    @pytest.mark.parametrize(
        "rest",
        [
            "user:secret@127.0.0.1:1/x?a=b",
            ":secret@127.0.0.1:1/x",
            "user@127.0.0.1:1/x",
            "127.0.0.1:1/a/b",
            "127.0.0.1:1/a%20b",
            "127.0.0.1:1,127.0.0.1:nonsense/x",
            "127.0.0.1:1,127.0.0.1:1/x",
            "127.0.0.1:1,/x",
        ],
    )
    def test_a_url_with_more_than_is_understood_is_refused(self, rest: str) -> None:
        with pytest.raises(InvalidConfig) as refused:
            open_db(f"etcd://{rest}")
        assert "secret" not in str(refused.value)


def test_what_was_known_of_a_lost_history_is_not_believed(tmp_path: pathlib.Path) -> None:
    """The new history gives the same number to another change of the object."""
    with EtcdServer("--unsafe-no-fsync") as server:
        etcd = EtcdDirectory(server)
        etcd.new(tmp_path)
        with opened(etcd.url) as db:
            known = db.create("t", "k", 1, topic="old")
            etcd.lose()
            with opened(etcd.url) as other:
                present = other.create("t", "k", 1, topic="new")
            assert known >> (NONCE_BITS + 6) == present >> (NONCE_BITS + 6)  # below it: the nonce, and 64 slots
            [written] = db.commit(db.check([Write("put", "t", "k", 1, "old")]))
            assert (written.action, written.topic, written.left_topic) == ("set", "old", "new")
            assert [change.left_topic for change in db.changes(present)] == ["new"]


def test_an_object_that_is_known_is_written_without_a_read(db: DbApi, server: EtcdServer) -> None:
    def ranges() -> int:
        text = read(f"http://127.0.0.1:{server.port}/metrics").decode()
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in text.splitlines()
            if line.startswith("grpc_server_handled_total") and 'grpc_method="Range"' in line
        )

    version = db.put("t", "k", 1, topic="t")
    before = ranges()
    version = db.set("t", "k", 2, expected_version=version)
    version = db.put("t", "k", 3, topic="u", expected_version=version)
    db.delete("t", "k", expected_version=version)
    db.put("t", "k", 4, topic="t")
    assert ranges() == before
    assert db.get("t", "k").value == 4
    assert ranges() > before  # it counts


class Http1Proxy:
    """Lets HTTP/1 through to a server, and answers HTTP/2 as a proxy does that does not know it."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.refused = 0
        self._sockets = [self._listening]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listening.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._sockets.append(client)
        with contextlib.suppress(OSError):
            first = client.recv(65536)
            if first.startswith(b"PRI "):
                self.refused += 1
                client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                return
            server = socket.create_connection(self._server)
            self._sockets.append(server)
            server.sendall(first)
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            self._copy(client, server)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while portion := source.recv(65536):
                target.sendall(portion)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_behind_a_proxy_for_http1_all_goes_through_the_gateway(server: EtcdServer, url: str) -> None:
    with contextlib.closing(Http1Proxy(server.port)) as proxy:
        with opened(url.replace(f":{server.port}", f":{proxy.port}")) as db:
            first = db.create("t", "k", 1, topic="t")
            db.mark_published([db.put("t", "k", 2, topic="t")])
            assert [change.revision for change in db.unpublished()] == [first]
            db.set("t", "k", 3, expected_version=db.get("t", "k").version)
            assert stored(db)[("t", "k")].value == 3
        assert proxy.refused == 1  # it is asked once


def test_a_transaction_that_is_too_large_for_one_message_goes_through_the_gateway(url: str) -> None:
    with opened(url) as db:
        value = "x" * 100_000
        version = db.create("t", "k", value, topic="t")
        assert db.get("t", "k").value == value
        assert db.put("t", "k", value, topic="t") == version


def test_what_a_process_has_put_into_the_outbox_it_takes_out_alone(url: str) -> None:
    with opened(url) as db, opened(url) as other:
        mine = [db.create("t", f"mine-{number}", number, topic="t") for number in range(6)]
        others = [other.create("t", f"other-{number}", number, topic="t") for number in range(3)]
        db.mark_published([*mine[:2], *mine[3:5]])
        assert [change.revision for change in db.unpublished()] == [mine[2], mine[5], *others]
        db.mark_published([mine[2], others[1], mine[2] + 1])
        assert [change.revision for change in other.unpublished()] == [mine[5], others[0], others[2]]
