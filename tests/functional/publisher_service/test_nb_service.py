"""Writers that publish through the publisher service of their host: nothing lost, nothing left, nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from heliograph import exits
from heliograph.main import main
from nb_api import LocalCache, NbApi, notify_config
from nb_api.coordination import watch_note
from nb_api.loading import open_db
from nb_api.writing.publishing import uses_service
from publisher_service import config as service_config
from publisher_service.service import PublisherService
from pubsub_api.errors import LimitReached
from pubsub_api.runtime.sockets import socket_file
from tests.helpers.nb_nodes import WriterNode, rows_of
from tests.helpers.nb_tools import PATIENT_DB, nb_conf, open_nb, sqlite_url
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


@pytest.fixture
def bus() -> str:
    return f"zmq://127.0.0.1:{free_port()}"


@pytest.fixture
def service(bus: str, tmp_path: pathlib.Path) -> Iterator[PublisherService]:
    """It leaves to writers what they are about to confirm."""
    with _service(bus, tmp_path, **PATIENT_DB) as service:
        yield service


@pytest.fixture
def sweeping_service(bus: str, tmp_path: pathlib.Path) -> Iterator[PublisherService]:
    """It publishes soon what is not confirmed."""
    with _service(bus, tmp_path) as service:
        yield service


def _service(bus: str, tmp_path: pathlib.Path, **db: float) -> PublisherService:
    return PublisherService(nb_conf(bus, db={"url": sqlite_url(tmp_path), **db}, **_socket(tmp_path)))


def _socket(tmp_path: pathlib.Path) -> dict[str, str]:
    return {"publisher_multiproc_socket": str(tmp_path / "workers")}


def test_a_worker_publishes_through_the_service_and_controllers_follow(
    service: PublisherService, bus: str, tmp_path: pathlib.Path
) -> None:
    with open_nb(sqlite_url(tmp_path), bus, **_socket(tmp_path)) as nb, LocalCache(nb) as cache:
        assert nb.session is not None
        assert uses_service(nb.session)
        cache.wait_synced(timeout_s=WAIT_S)
        for number in range(100):
            nb.put("port", f"p{number % 10}", number, topic=f"t/{number % 3}")
        nb.flush(timeout_s=WAIT_S)
        assert nb.db.unpublished() == []
        wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")
        assert nb.statistics().handover.confirmed == 100
        assert nb.statistics().handover.left == 0


def test_forked_workers_have_a_connection_each(service: PublisherService, bus: str, tmp_path: pathlib.Path) -> None:
    """As a pre-fork server does: the NbApi is opened, and used, before the workers are forked."""
    with open_nb(sqlite_url(tmp_path), bus, **_socket(tmp_path)) as nb:
        nb.create("port", "before", 0, topic="t")
        nb.flush(timeout_s=WAIT_S)
        children = [_forked_writer(nb, number) for number in range(3)]
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
        with LocalCache(nb) as cache:
            cache.wait_synced(timeout_s=WAIT_S)
            assert len(cache.get_all("port")) == 61
        assert nb.db.unpublished() == []
        assert service.report()["events"] == 61


def _forked_writer(nb: object, number: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for step in range(20):
            nb.create("port", f"p{number}-{step}", step, topic=f"t/{number}")  # type: ignore[attr-defined]
        nb.flush(timeout_s=WAIT_S)  # type: ignore[attr-defined]
        status = 0
    finally:
        os._exit(status)


def test_what_a_killed_worker_left_is_swept_by_the_service(
    sweeping_service: PublisherService, bus: str, tmp_path: pathlib.Path
) -> None:
    socket = _socket(tmp_path)
    with open_nb(sqlite_url(tmp_path), bus, **socket) as nb, LocalCache(nb) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        with WriterNode(sqlite_url(tmp_path), bus, seed=2, **socket) as writer:
            goal = nb.db.revision() + 30
            writer.start_flood()
            wait_until(lambda: nb.db.revision() >= goal, WAIT_S, "some writes")
            writer.kill()
        wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be swept")
        wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")


def test_controllers_find_publishers_in_the_directory(tmp_path: pathlib.Path) -> None:
    """Every port is chosen by the system, and nobody is configured."""
    url, bus = sqlite_url(tmp_path), "zmq://127.0.0.1:0"
    with open_nb(url, bus, pub_sub_use_multiproc=False) as nb, open_nb(url, bus, publishers_ips=[]) as other:
        nb.create("port", "p1", 1, topic="t")
        with LocalCache(other) as cache:
            cache.wait_synced(timeout_s=WAIT_S)
            for number in range(20):
                nb.create("net", f"n{number}", number, topic="t")
            wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")

            def is_heard() -> bool:
                nb.put("net", "n0", "once more", topic="t")
                nb.put("net", "n0", "and again", topic="t")
                bus_statistics = cache.statistics().bus
                assert bus_statistics is not None
                return bus_statistics.received > 0

            wait_until(is_heard, WAIT_S, "a change that came by the bus")


def test_a_service_that_is_away_costs_no_write(
    bus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers go on; when the service comes, what waited is published, and the outbox is empty."""
    monkeypatch.setattr(notify_config, "PUBLISH_TIMEOUT_S", 0.2)
    with open_nb(sqlite_url(tmp_path), bus, db=PATIENT_DB, **_socket(tmp_path)) as nb:
        for number in range(20):
            nb.create("port", f"p{number}", number, topic="t")
        wait_until(lambda: nb.statistics().handover.failures > 0, WAIT_S, "an attempt in vain")
        assert len(nb.db.unpublished()) == 20
        with _service(bus, tmp_path, **PATIENT_DB) as service:
            wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be confirmed")
            assert service.report()["events"] == 20


def test_changes_that_the_service_cannot_publish_stay_in_the_outbox_and_its_status_names_them(
    bus: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqlite_url(tmp_path)
    conf = nb_conf(bus, db={"url": url}, streams_max=4, **_socket(tmp_path))
    with PublisherService(conf) as service, open_nb(url, bus, **_socket(tmp_path)) as nb:
        created = [nb.create("port", f"p{number}", number, topic=f"t/{number}") for number in range(6)]
        wait_until(
            lambda: [one.key for one in nb.db.unpublished()] == ["p4", "p5"], WAIT_S, "all but the last two to be told"
        )
        wait_until(lambda: len(service.report()["database"].get("refused", ())) == 2, WAIT_S, "the sweeper's report")
        file = tmp_path / "status.conf"
        file.write_text(f"[pubsub]\npublisher_multiproc_socket = {tmp_path / 'workers'}\n")
        assert main(["status", "--json", "--config-file", str(file)]) == exits.FAILED
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert len(problems) == 1
        named = f"2 changes cannot be published and stay in the outbox, revision {created[4]} of port 'p4'"
        assert named in problems[0]
        assert "streams_max" in problems[0]


def test_changes_of_watched_tables_that_cannot_be_published_are_read_by_copies_and_named(
    bus: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqlite_url(tmp_path)
    conf = nb_conf(bus, db={"url": url}, streams_max=2, **_socket(tmp_path))
    service_config.register(conf)
    conf.set_override("watch_tables", ["chassis"], group=service_config.GROUP)
    with (
        contextlib.closing(open_db(url, with_outbox=False)) as writer,  # a controller that has no publisher
        PublisherService(conf) as service,
        open_nb(url, bus, **_socket(tmp_path)) as nb,
        LocalCache(nb) as cache,
    ):
        cache.wait_synced(timeout_s=WAIT_S)
        wait_until(lambda: watch_note.read(writer) is not None, WAIT_S, "watching to begin")
        for number in range(5):
            writer.create("chassis", f"c{number}", number, topic=f"host/{number}")
        wait_until(lambda: cache.get_all("chassis") == nb.get_all("chassis"), WAIT_S, "the copy to have all")
        wait_until(lambda: len(service.report()["database"]["refused_of_watched"]) == 3, WAIT_S, "the report")
        file = tmp_path / "status.conf"
        file.write_text(f"[pubsub]\npublisher_multiproc_socket = {tmp_path / 'workers'}\n")
        assert main(["status", "--json", "--config-file", str(file)]) == exits.FAILED
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert "3 changes of watched tables cannot be published" in problem
        assert "chassis 'c2'" in problem or "chassis 'c3'" in problem or "chassis 'c4'" in problem


class LosingWire:
    """A socket file in front of another.  While ``is_losing``, whatever the service answers ends the connection."""

    def __init__(self, path: pathlib.Path, target: pathlib.Path) -> None:
        self._target = str(target)
        self.is_losing = False
        self.lost = 0
        self._listener = socket_file.listen(path)
        self._listener.setblocking(True)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._threads.append(threading.Thread(target=self._pass_on, args=(near, far), daemon=True))
                self._threads[-1].start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(65_536)
                    if data and source is far and self.is_losing:
                        self.is_losing = False
                        self.lost += 1
                        return
                    if not data:
                        return
                    (far if source is near else near).sendall(data)

    def close(self) -> None:
        """Once nobody is connected any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT_S)


def test_a_refusal_that_is_lost_on_its_way_to_the_worker_leaves_the_change_in_the_outbox(
    bus: str, tmp_path: pathlib.Path
) -> None:
    url = sqlite_url(tmp_path)
    conf = nb_conf(bus, db={"url": url, **PATIENT_DB}, streams_max=1, **_socket(tmp_path))
    with (
        PublisherService(conf),
        contextlib.closing(LosingWire(tmp_path / "wire", tmp_path / "workers")) as wire,
        open_nb(url, bus, db=PATIENT_DB, publisher_multiproc_socket=str(tmp_path / "wire")) as nb,
    ):
        nb.create("port", "good", 1, topic="good")
        nb.flush(timeout_s=WAIT_S)
        wire.is_losing = True
        nb.create("port", "beyond", 1, topic="beyond")
        nb.flush(timeout_s=WAIT_S)
        assert wire.lost == 1
        assert [change.key for change in nb.db.unpublished()] == ["beyond"]


def test_a_refusal_of_what_a_forked_child_wrote_leaves_it_in_the_outbox(bus: str, tmp_path: pathlib.Path) -> None:
    """Whatever was refused of its parent."""
    url = sqlite_url(tmp_path)
    conf = nb_conf(bus, db={"url": url, **PATIENT_DB}, streams_max=1, **_socket(tmp_path))
    with PublisherService(conf), open_nb(url, bus, db=PATIENT_DB, **_socket(tmp_path)) as nb:
        for key in ("good", "refused-1", "refused-2"):
            nb.create("port", key, 1, topic=key)
        nb.flush(timeout_s=WAIT_S)
        assert "refused-2" in [change.key for change in nb.db.unpublished()]
        child = os.fork()
        if not child:
            try:
                nb.create("port", "of-the-child", 1, topic="of-the-child")
                nb.flush(timeout_s=WAIT_S)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert "of-the-child" in [change.key for change in nb.db.unpublished()]


def test_a_commit_does_not_wait_for_a_service_that_is_away(
    bus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_config, "WINDOW_EVENTS_MAX", 1)
    monkeypatch.setattr(notify_config, "PUBLISH_QUEUE_MAX", 10)
    monkeypatch.setattr(notify_config, "PUBLISH_TIMEOUT_S", 3600.0)
    conf = nb_conf(bus, **_socket(tmp_path))
    service_config.register(conf)
    conf.set_override("send_timeout", 3600.0, group=service_config.GROUP)
    nb = NbApi.open(conf=conf, url=sqlite_url(tmp_path))
    for number in range(60):  # the thread waits for room in the window, for an hour, and the queue is full
        nb.put("port", f"p{number}", number, topic="t")
    counters = nb.statistics().handover
    assert counters.committed == 60
    assert counters.left >= 30, "left to the sweeper"
    assert counters.waits <= 3, "only until it was clear that nobody takes anything"
    service = PublisherService(nb_conf(bus, db={"url": sqlite_url(tmp_path)}, **_socket(tmp_path)))
    with service:
        wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the sweeper to publish what was left")
        nb.close()


def test_a_value_as_large_as_allowed_passes_a_service_with_the_same_limits(bus: str, tmp_path: pathlib.Path) -> None:
    limits = {"frame_bytes_max": 6 * 1024 * 1024}
    db = {"value_bytes_max": 5 * 1024 * 1024, "url": sqlite_url(tmp_path), **PATIENT_DB}
    value = b"x" * (5 * 1024 * 1024 - 5)
    with (
        PublisherService(nb_conf(bus, db=db, **limits, **_socket(tmp_path))) as service,
        open_nb(sqlite_url(tmp_path), bus, db=db, **limits, **_socket(tmp_path)) as nb,
    ):
        nb.put("port", "large", value, topic="t")
        nb.put("port", "small", 1, topic="t")
        with pytest.raises(LimitReached, match="value_bytes_max"):
            nb.put("port", "larger", value + b"x", topic="t")
        nb.flush(timeout_s=WAIT_S)
        assert service.report()["events"] == 2
        assert service.report()["hop"]["bad_connections"] == 0
