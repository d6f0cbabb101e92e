"""Members of the fleet on a real database: what they tell, clashes, failures, and what is forgotten."""

from __future__ import annotations

import contextlib
import pathlib
import random
import threading
from collections.abc import Iterator

import pytest

import pubsub_api
from nb_api import LocalCache, fleet
from nb_api.db_api import DbApi
from nb_api.errors import DbUnavailable, InvalidObject
from nb_api.fleet import FleetObserver, FleetReport, FleetReporter
from nb_api.fleet.report import read
from nb_api.loading import open_db
from pubsub_api.errors import Forked, UsageError
from pubsub_api.reporting import ProcessReport
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import WAIT_S, wait_until

INTERVAL_S = 0.05


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return sqlite_url(tmp_path)


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with contextlib.closing(open_db(url)) as db:
        yield db


def told(db: DbApi) -> dict[str, FleetReport]:
    """The reports there are, by key."""
    found = {key: read(data) for key, data in db.reports().items()}
    return {key: report for key, report in found.items() if report is not None}


class FailingDb:
    """A database that takes no report while ``is_away``."""

    def __init__(self, db: DbApi) -> None:
        self._db = db
        self.is_away = True

    def tell_report(self, name: str, data: bytes) -> object:
        if self.is_away:
            raise DbUnavailable("it is away")
        return self._db.tell_report(name, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_a_member_tells_what_its_copy_is(url: str) -> None:
    with open_nb(url, memory_bus()) as nb, LocalCache(nb, tables=["port"], topics=["tenant-1/#"]) as cache:
        version = nb.put("port", "p1", 1, topic="tenant-1/a")
        cache.wait_synced(timeout_s=WAIT_S)
        cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
        with contextlib.closing(fleet.report(nb, cache, name="host-1/agent", role="agent", interval_s=INTERVAL_S)):
            wait_until(lambda: "host-1/agent" in told(nb.db))
            found = told(nb.db)["host-1/agent"]
            [copy] = found.copies
            assert (found.role, found.has_bus, found.links_up) == ("agent", True, 1)
            assert (copy.tables, copy.topics, copy.objects, copy.is_complete) == (["port"], ["tenant-1/#"], 1, True)
            assert copy.newest >= version
            assert sum(found.resyncs.values()) >= 1
            wait_until(lambda: told(nb.db)["host-1/agent"].count > found.count, what="another report")
        assert told(nb.db) == {}


def test_digests_are_told_and_are_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer = threading.Event()
    told_digest = {"port": "1f"}

    def digests(_: LocalCache) -> dict[str, str]:
        assert may_answer.wait(WAIT_S)
        return told_digest

    monkeypatch.setattr(LocalCache, "digests", digests, raising=False)
    with (
        open_nb(url) as nb,
        LocalCache(nb) as cache,
        contextlib.closing(fleet.report(nb, cache, name="m", interval_s=INTERVAL_S)) as member,
    ):
        wait_until(lambda: member.statistics().reports > 2)
        assert told(nb.db)["m"].copies[0].digest == ""
        may_answer.set()
        first = wait_until(lambda: told(nb.db)["m"].copies[0].digest)
        told_digest["port"] = "20"
        wait_until(lambda: told(nb.db)["m"].copies[0].digest not in ("", first), what="another digest")


def test_a_session_is_told(db: DbApi) -> None:
    with pubsub_api.open(memory_bus()) as session:
        publisher = session.publisher(name="p")
        publisher.send_event(pubsub_api.Event(topic="t", table="port", key="k", action="set", value=1, version=1))
        with contextlib.closing(fleet.report(db, session, name="m", interval_s=INTERVAL_S)):
            wait_until(lambda: told(db) and told(db)["m"].published == 1)


def test_reports_make_no_change(db: DbApi) -> None:
    version = db.create("port", "p1", 1, topic="t")
    with contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as member:
        wait_until(lambda: member.statistics().reports > 3)
        assert db.revision() == version
    assert [change.revision for change in db.changes(0)] == [version]


def test_two_processes_of_one_name_are_told_apart(db: DbApi) -> None:
    observer = FleetObserver(db)
    with (
        contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as first,
        contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as second,
    ):

        def both_clash() -> bool:
            members = observer.look().members
            found = {one.report.incarnation: one.states for one in members if one.report is not None}
            return found == {first.incarnation: ("clash",), second.incarnation: ("clash",)}

        wait_until(both_clash, what="both to be shown as a clash")
        assert first.statistics().clashes + second.statistics().clashes >= 1
        second.close()
        wait_until(lambda: [one.states for one in observer.look().members] == [("ok",)], what="one that is well")


def test_a_process_that_starts_anew_replaces_its_former_life(db: DbApi) -> None:
    with contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as first:
        wait_until(lambda: "m" in told(db))
        data = db.reports()["m"]
    db.tell_report("m", data)  # as it is after a kill
    with contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as second:
        wait_until(lambda: second.statistics().reports > 3)
        assert {one.incarnation for one in told(db).values()} == {second.incarnation} != {first.incarnation}
        assert second.statistics().clashes == 0


def test_a_database_that_is_away_is_counted_and_tried_again(db: DbApi) -> None:
    failing = FailingDb(db)
    with contextlib.closing(fleet.report(failing, name="m", interval_s=INTERVAL_S)) as member:  # type: ignore[arg-type]
        wait_until(lambda: member.statistics().failures >= 2)
        assert told(db) == {}
        failing.is_away = False
        wait_until(lambda: "m" in told(db))
        assert told(db)["m"].failures >= 2


def test_what_nobody_renews_for_a_day_is_forgotten(db: DbApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    db.tell_report("dead", b"anything")
    now = [0.0]
    with FleetReporter(db, ProcessReport(), name="m", interval_s=INTERVAL_S, clock=lambda: now[0]) as member:
        for _ in range(23):
            now[0] += 3600.0
            before = member.statistics().reports
            wait_until(lambda before=before: member.statistics().reports > before + 1)  # type: ignore[misc]
        assert "dead" in db.reports()
        for _ in range(3):
            now[0] += 3600.0
            before = member.statistics().reports
            wait_until(lambda before=before: member.statistics().reports > before + 1)  # type: ignore[misc]
        wait_until(lambda: list(db.reports()) == ["m"], what="the dead report to be forgotten")
        assert member.statistics().forgotten == 1


def test_many_members_tell_less_often(db: DbApi) -> None:
    for number in range(1000):
        db.tell_report(f"m{number}", b"anything")
    with contextlib.closing(fleet.report(db, name="m")) as member:
        assert member.wait_done(timeout_s=WAIT_S)
        assert member.statistics().members >= 1000
        member.close()
    with contextlib.closing(fleet.report(db, name="m")) as member:
        wait_until(lambda: "m" in told(db))
        first = told(db)["m"]
        assert first.interval_s == 1.0
        wait_until(lambda: told(db)["m"].interval_s > 5.0, what="a longer interval")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "a\nb"}, InvalidObject),
        ({"name": "n" * 201}, UsageError),
        ({"interval_s": 0.0}, UsageError),
        ({"interval_s": 1e9}, UsageError),
    ],
)
def test_what_can_never_work_is_refused(db: DbApi, arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        fleet.report(db, **arguments)  # type: ignore[arg-type]


def test_what_cannot_be_reported_is_refused(db: DbApi) -> None:
    with pytest.raises(UsageError):
        fleet.report(db, object(), name="m")  # type: ignore[arg-type]


def test_a_forked_child_tells_nothing(db: DbApi) -> None:
    with contextlib.closing(fleet.report(db, name="m", interval_s=INTERVAL_S)) as member:
        assert member.wait_done(timeout_s=WAIT_S)
        assert in_forked_child(lambda: outcome(member.start)) == Forked.__name__
        count = told(db)["m"].count
        wait_until(lambda: told(db)["m"].count > count, what="the parent to go on")
