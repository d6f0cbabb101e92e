"""One active controller among several: who leads works, and who stops leading begins nothing."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from nb_api import Controller, Request
from nb_api.coordination.election import Election
from nb_api.db_api import DbApi
from nb_api.loading import open_db
from tests.helpers.nb_tools import sqlite_url
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.waiting import WAIT_S, wait_until


class Scripted:
    """As much of an `Election` as a controller asks."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def is_leader(self) -> bool:
        return self.number is not None

    def token(self) -> int | None:
        return self.number


@pytest.fixture
def db(tmp_path: pathlib.Path) -> Iterator[DbApi]:
    with contextlib.closing(open_db(sqlite_url(tmp_path))) as opened:
        yield opened


def ports(count: int) -> Any:
    cache = ScriptedCache()
    for number in range(count):
        cache.put("port", f"p{number}")
    return cache


def test_who_does_not_lead_runs_nothing_and_is_ready_to(caplog: pytest.LogCaptureFixture) -> None:
    cache, election, runs = ports(5), Scripted(None), Counter[str]()
    voting: Any = election

    def reconcile(request: Request) -> None:
        assert request.token == 7
        runs[request.key] += 1

    with Controller(cache, reconcile, election=voting) as controller:
        wait_until(lambda: controller.statistics().has_begun, what="the copy")
        assert controller.statistics().ready == 5
        assert not controller.statistics().is_active
        election.number = 7
        wait_until(lambda: sum(runs.values()) == 5, what="all of them")
        controller.wait_idle(timeout_s=WAIT_S)
        assert controller.statistics().is_active
    assert "Traceback" not in caplog.text


def test_a_follower_that_is_closed_runs_nothing_when_it_is_elected_afterwards() -> None:
    cache, election, runs = ports(5), Scripted(None), Counter[str]()
    voting: Any = election
    with Controller(cache, lambda request: runs.update([request.key]), election=voting) as controller:
        wait_until(lambda: controller.statistics().ready == 5, what="the copy")
    election.number = 7
    assert not runs
    assert controller.statistics().runs == 0


def test_who_stops_leading_begins_nothing_and_the_run_is_told() -> None:
    cache, election = ports(5), Scripted(7)
    voting: Any = election
    begun, go_on = threading.Event(), threading.Event()
    told: list[tuple[int | None, bool]] = []

    def reconcile(request: Request) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        told.append((request.token, request.is_stopping))

    with Controller(cache, reconcile, workers=1, election=voting) as controller:
        assert begun.wait(WAIT_S)
        election.number = None
        go_on.set()
        wait_until(lambda: controller.statistics().running == 0, what="the run to end")
        assert told == [(7, True)]
        assert controller.statistics().runs == 1
    assert len(told) == 1  # a follower that stops runs nothing either


def test_who_leads_again_looks_at_everything() -> None:
    """Another may have led meanwhile, and have left anything undone."""
    cache, election, runs = ports(5), Scripted(7), Counter[str]()
    voting: Any = election

    def reconcile(request: Request) -> None:
        runs[request.key] += 1

    with Controller(cache, reconcile, election=voting, interval_min_s=0.0) as controller:
        wait_until(lambda: sum(runs.values()) == 5, what="all of them")
        election.number = None
        controller.enqueue("port", "p0")
        election.number = 9
        wait_until(lambda: min(runs.values()) == 2, what="all of them again")
        controller.wait_idle(timeout_s=WAIT_S)


def test_two_processes_hand_over(db: DbApi) -> None:
    runs: dict[str, Counter[str]] = {"a": Counter(), "b": Counter()}

    def controller(holder: str, election: Election) -> Controller:
        def reconcile(request: Request) -> None:
            runs[holder][request.key] += 1

        return Controller(ports(5), reconcile, election=election, name=holder)

    with Election(db, "flows", holder="a", lease_s=20.0) as first:
        first.wait_leader(timeout_s=WAIT_S)
        with Election(db, "flows", holder="b", lease_s=20.0) as second, controller("b", second) as other:
            with controller("a", first) as own:
                wait_until(lambda: sum(runs["a"].values()) >= 5, what="the leader to work")
                own.close()  # in this order: what runs has ended before another may lead
                first.close()
            wait_until(lambda: len(runs["b"]) == 5, what="the other to work")
            assert other.statistics().is_active


def test_a_leader_whose_controller_ends_by_itself_resigns_when_its_last_run_has_ended(
    db: DbApi, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reconcile(_request: Request) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    with (
        Election(db, "flows", holder="a", lease_s=3600.0) as first,  # which does not end by itself
        Controller(cache := ports(1), reconcile, election=first) as own,
    ):
        try:
            assert begun.wait(WAIT_S)
            cache.is_closed = True
            wait_until(lambda: "ends by itself, and gives up its leadership" in caplog.text, what="a word about it")
            assert own.is_closed
            assert first.is_leader(), "its run has not ended"
        finally:
            go_on.set()
        with Election(db, "flows", holder="b", lease_s=2.0) as second:
            second.wait_leader(timeout_s=WAIT_S)
