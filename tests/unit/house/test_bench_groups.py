"""The benchmark of groups works at tiny sizes.  Nothing here says anything about speed."""

from __future__ import annotations

import pytest

from bench import catalog
from bench.plan import Plan
from bench.scenarios import groups

pytestmark = pytest.mark.usefixtures("warm_workers")

EVENTS = 200


@pytest.mark.parametrize("driver", ["zmq", pytest.param("redis", marks=pytest.mark.chaos)])
def test_groups_are_measured(driver: str) -> None:
    if problem := catalog.problem(driver):
        pytest.skip(problem)
    outcome = groups.measure(Plan(EVENTS, 1, True, lambda _: None), driver)
    assert all(row.get("events/s", 1) > 0 for row in outcome.rows)
    assert {check.target.scenario for check in outcome.checks} == {"groups"}
