"""The benchmark of many controllers, with a few: it runs, and what it checks holds."""

from __future__ import annotations

import pytest

from bench import controller_runs, server_programs
from bench.plan import Plan
from bench.scenarios import many_controllers
from bench.targets import TARGETS

PLAN = Plan(events=300, rounds=1, is_quick=True, say=lambda _: None)


@pytest.mark.parametrize(
    ("spans", "most"),
    [([], 0), ([(1, 2)], 1), ([(1, 5), (2, 3), (4, 6)], 2), ([(1, 2), (2, 3)], 1), ([(1, 9), (2, 8), (3, 7)], 3)],
)
def test_how_many_were_open_at_once(spans: list[tuple[int, int]], most: int) -> None:
    assert controller_runs.most_at_once(spans) == most


@pytest.mark.skipif(server_programs.find_postgres() is None, reason="there is no PostgreSQL")
@pytest.mark.chaos
def test_caches_sync_hear_changes_and_read_nothing_when_the_service_comes_back() -> None:
    outcome = many_controllers.measure(PLAN, "zmq")
    assert [row["case"].partition(",")[0] for row in outcome.rows] == ["10 caches", "10 caches", "10"]
    assert {found.target.name for found in outcome.checks} == {
        target.name for target in TARGETS if target.scenario == "many_controllers"
    }
    measured = {found.target.name: found.measured for found in outcome.checks}
    assert measured["after restart"] == measured["missing"] == 0
    assert 1 <= measured["snapshots"] <= 16
    assert outcome.rows[0]["snapshots"] == 10


def test_the_scenario_belongs_to_one_driver() -> None:
    assert many_controllers.measure(PLAN, "redis").rows == []
