"""Writers that publish through the publisher service of their host: nothing lost, nothing left, nothing twice."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from nb_api import LocalCache
from nb_api.publishing import uses_service
from publisher_service.service import PublisherService
from tests.nb_nodes import WriterNode, rows_of
from tests.nb_tools import PATIENT_DB, nb_conf, open_nb, sqlite_url
from tests.servers import free_port
from tests.waiting import wait_until

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


def test_forked_workers_each_have_their_own_hop(service: PublisherService, bus: str, tmp_path: pathlib.Path) -> None:
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


def test_a_service_that_is_away_costs_no_write(bus: str, tmp_path: pathlib.Path) -> None:
    """Writers go on; when the service comes, what waited is published, and the outbox is empty."""
    impatient = {"publish_timeout": 0.2, **PATIENT_DB}
    with open_nb(sqlite_url(tmp_path), bus, db=impatient, **_socket(tmp_path)) as nb:
        for number in range(20):
            nb.create("port", f"p{number}", number, topic="t")
        wait_until(lambda: nb.statistics().handover.failures > 0, WAIT_S, "an attempt in vain")
        assert len(nb.db.unpublished()) == 20
        with _service(bus, tmp_path, **PATIENT_DB) as service:
            wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be confirmed")
            assert service.report()["events"] == 20
