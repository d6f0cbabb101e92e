"""The benchmark of writers and controllers, at tiny sizes: it runs, and what it measures is complete."""

from __future__ import annotations

import pytest

from bench.plan import Plan
from bench.scenarios import commit, controller, service, sync

pytestmark = pytest.mark.usefixtures("warm_workers")

PLAN = Plan(events=300, rounds=1, is_quick=True, say=lambda _: None)


@pytest.mark.chaos
def test_a_first_copy_is_compared_with_a_plain_reader() -> None:
    outcome = sync.measure(PLAN, "zmq")
    assert [row["objects"] for row in outcome.rows] == [1000, 1000, 100]
    assert {check.target.name for check in outcome.checks} == {"time", "memory", "missing"}
    assert next(check.measured for check in outcome.checks if check.target.name == "missing") == 0


def test_commits_are_compared_with_sqlite_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SIZES", {10: 3})  # each size takes two processes
    outcome = commit.measure(PLAN, "zmq")
    assert [check.target.name for check in outcome.checks] == ["by 10"]
    assert all(check.measured > 0 for check in outcome.checks)


def test_the_way_through_the_service_ends_at_a_subscriber_and_in_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WORKERS", 1)  # each is a process
    outcome = service.measure(PLAN, "zmq")
    assert [row["lost"] for row in outcome.rows] == [0, 0, 0]
    assert {check.target.name for check in outcome.checks} == {"received", "applied", "p50", "lost"}


@pytest.mark.chaos
def test_a_copy_with_indexes_is_measured_and_right() -> None:
    outcome = controller.measure(PLAN, "zmq")
    assert [row["objects"] for row in outcome.rows] == [1000, 1000, 100]
    measured = {check.target.name: check.measured for check in outcome.checks}
    assert measured.keys() == {"memory", "look-up", "changes", "wrong", "verify", "differences", "reconcile", "runs"}
    assert (measured["wrong"], measured["differences"]) == (0, 0)
