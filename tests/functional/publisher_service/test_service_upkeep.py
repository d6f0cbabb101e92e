"""What the elected publisher service does for the database: sweeping, watching tables, the directory."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import threading
from collections.abc import Iterator

import pytest

import pubsub_api
from heliograph.main import main
from nb_api import NbApi
from nb_api.coordination import watch_note
from nb_api.core.directory import TABLE as DIRECTORY
from nb_api.db_api import DbApi
from nb_api.loading import open_db
from publisher_service.service import PublisherService
from tests.helpers.service_nodes import START_S, Host
from tests.helpers.waiting import wait_until


@pytest.fixture
def database(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "objects.db"


@pytest.fixture
def host(database: pathlib.Path) -> Iterator[Host]:
    with Host(database=database, watch_tables="chassis") as made:
        yield made


class Follower:
    """What a controller on the bus sees."""

    def __init__(self, *hosts: Host) -> None:
        self.seen: list[tuple[str, str, str, int]] = []
        self._sessions = [pubsub_api.open(host.url) for host in hosts]
        for session in self._sessions:
            session.subscriber(["#"], self._on_event).wait_ready(timeout_s=START_S)

    def _on_event(self, event: pubsub_api.Event) -> None:
        self.seen.append((event.table, event.key, event.action, event.version))

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.seen) >= count, START_S, f"{count} events")

    def close(self) -> None:
        for session in self._sessions:
            session.close()


@contextlib.contextmanager
def following(*hosts: Host) -> Iterator[Follower]:
    follower = Follower(*hosts)
    try:
        yield follower
    finally:
        follower.close()


@contextlib.contextmanager
def writing(host: Host, *, with_outbox: bool) -> Iterator[DbApi]:
    """Somebody who writes into the database and tells nobody."""
    db = open_db(None, host.conf(), with_outbox=with_outbox)
    try:
        yield db
    finally:
        db.close()


def wait_leader(service: PublisherService) -> None:
    wait_until(lambda: service.upkeep is not None and service.upkeep.is_leader, START_S, "the service to be elected")


def wait_watching(db: DbApi) -> None:
    """Until somebody has noted where watching began: what was written before is not news."""

    def is_noted() -> bool:
        with db.snapshot([watch_note.TABLE]) as snapshot:
            return bool(list(snapshot))

    wait_until(is_noted, START_S, "a service to watch")


def test_what_a_dead_writer_committed_is_published(host: Host) -> None:
    with PublisherService(host.conf()) as service, following(host) as follower, writing(host, with_outbox=True) as db:
        wait_leader(service)
        version = db.create("port", "p1", {"up": True}, topic="tenant-7")
        follower.wait_for(1)
        assert follower.seen == [("port", "p1", "create", version)]
        wait_until(lambda: not db.unpublished(), START_S, "the outbox to be empty")
        wait_until(lambda: service.report()["database"]["sweeper"]["swept"] == 1, START_S, "the count")


def test_what_a_living_writer_publishes_is_not_swept(database: pathlib.Path) -> None:
    with (
        Host(database=database, outbox_age=3600) as host,
        PublisherService(host.conf()) as service,
        following(host) as follower,
        NbApi.open(conf=host.conf()) as nb,
    ):
        wait_leader(service)
        versions = [nb.create("port", f"p{number}", number, topic="tenant-7") for number in range(50)]
        nb.flush(timeout_s=START_S)
        follower.wait_for(50)
        assert [seen[3] for seen in follower.seen] == versions
        assert nb.db.unpublished() == [], "the worker itself has confirmed what the service acknowledged"
        assert service.report()["database"]["sweeper"]["swept"] == 0


def test_watched_tables_are_published_whoever_wrote_them(host: Host) -> None:
    with PublisherService(host.conf()), following(host) as follower, writing(host, with_outbox=False) as db:
        wait_watching(db)
        versions = [db.create("chassis", "c1", {"ip": "10.0.0.1"}, topic="chassis")]
        db.create("other", "o1", 1, topic="tenant-7")
        versions.append(db.set("chassis", "c1", {"ip": "10.0.0.2"}))
        versions.append(db.delete("chassis", "c1"))
        follower.wait_for(3)
        assert follower.seen == [
            ("chassis", "c1", action, version)
            for action, version in zip(("create", "set", "delete"), versions, strict=True)
        ]


def test_of_several_services_one_publishes_and_another_takes_over(host: Host, database: pathlib.Path) -> None:
    with (
        Host(database=database, watch_tables="chassis") as second,
        PublisherService(second.conf()) as survivor,
        writing(host, with_outbox=False) as db,
    ):
        wait_watching(db)
        with PublisherService(host.conf()) as other, following(host, second) as follower:
            expected = [db.create("chassis", f"a{number}", number, topic="chassis") for number in range(20)]
            follower.wait_for(20)
            assert [seen[3] for seen in follower.seen] == expected, "once, by the leader"
            survivor.upkeep.close()  # type: ignore[union-attr]
            wait_leader(other)
            expected += [db.create("chassis", f"b{number}", number, topic="chassis") for number in range(20)]
            wait_until(lambda: {seen[3] for seen in follower.seen} == set(expected), START_S, "the rest")


def test_a_service_that_was_killed_and_started_again_goes_on_at_once(database: pathlib.Path) -> None:
    with Host(database=database) as host:
        first = host.service(OS_ELECTION__LEASE="3600")
        wait_until(lambda: first.report()["database"].get("leader"), START_S, "the first to be elected")
        first.kill()
        second = host.service(OS_ELECTION__LEASE="3600")
        wait_until(lambda: second.report()["database"].get("leader"), START_S, "the second to be elected")
        assert second.stop() == 0


def test_every_service_is_in_the_directory_until_it_ends(host: Host, database: pathlib.Path) -> None:
    def addresses(db: DbApi) -> set[str]:
        with db.snapshot([DIRECTORY]) as snapshot:
            return {found.value["address"] for found in snapshot}

    with Host(database=database) as second, writing(host, with_outbox=False) as db:
        with PublisherService(host.conf()) as one, PublisherService(second.conf()) as two:
            both = {one.publisher.address, two.publisher.address}
            wait_until(lambda: addresses(db) == both, START_S, "both entries")
        wait_until(lambda: addresses(db) == set(), START_S, "both entries to go")


def test_the_report_shows_the_database(host: Host) -> None:
    with PublisherService(host.conf()) as service, writing(host, with_outbox=False) as db:
        wait_leader(service)
        db.create("other", "o1", 1, topic="tenant-7")
        report = service.report()["database"]
        assert report["leader"] is True
        assert report["revision"] >= 1
        assert report["outbox"] == 0
        assert report["problem"] is None


def status(host: Host, *arguments: str) -> tuple[int, str]:
    """`heliograph status`, its exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["status", "--config-file", str(host.config_file), *arguments])
    return code, printed.getvalue()


def test_status_asks_the_service(host: Host) -> None:
    with PublisherService(host.conf()) as service:
        wait_leader(service)
        code, printed = status(host, "--json")
        assert code == 0
        record = json.loads(printed)
        assert record["ok"] is True
        assert record["problems"] == []
        assert record["service"]["guid"] == service.publisher.guid.hex()
        assert record["database"]["leader"] is True
        code, printed = status(host)
        assert code == 0
        assert "this service" in printed
        assert service.publisher.guid.hex() in printed
        service.intake.stop(drain_timeout_s=0)
        code, printed = status(host)
        assert code == 1
        assert "not healthy" in printed


def test_status_without_a_service_shows_the_database(host: Host) -> None:
    with writing(host, with_outbox=True) as db:
        revision = db.create("port", "p1", 1, topic="tenant-7")
        code, printed = status(host, "--json")
    record = json.loads(printed)
    assert code == 1
    assert record["service"] is None
    assert (record["database"]["revision"], record["database"]["outbox"]) == (revision, 1)
    assert "no publisher service answers" in record["problems"][0]
    host.configure(health="off")
    assert "health is off" in status(host)[1]


def test_status_names_what_the_elected_service_has_no_thread_for_until_it_has_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, has_room = threading.Thread.start, threading.Event()

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "heliograph-sweeper" and not has_room.is_set():
            raise RuntimeError("can't start new thread")  # as the interpreter says it
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with PublisherService(host.conf()) as service:
        wait_leader(service)
        wait_until(lambda: service.report()["database"]["undone"], START_S, "the term to begin")
        code, printed = status(host, "--json")
        assert code == 1
        (problem,) = json.loads(printed)["problems"]
        assert "does not run in the elected service: heliograph-sweeper" in problem
        has_room.set()
        wait_until(lambda: not service.report()["database"]["undone"], START_S, "the sweeper to be started after all")
        assert status(host)[0] == 0
