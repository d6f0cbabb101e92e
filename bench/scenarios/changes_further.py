"""Further rows of the way from a commit to the copies: more followers, larger transactions, through the publisher
service, several writers.  Each is a scenario of its own, because together they take long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from bench.change_cases import (
    FLOOD,
    RATE,
    STEADY,
    ChangeCase,
    flood,
    measure_in_turns,
    most,
    not_held,
    p50_ms,
    rows,
    steady,
)
from bench.change_ends import ChangeSystem
from bench.change_systems import ETCD, LISTEN, POSTGRES, REDIS, SQLITE, WATCH
from bench.plan import Outcome, Plan
from bench.scenarios.changes import SEE_ZMQ, SIZES
from bench.targets import check

SYSTEMS = (POSTGRES, LISTEN, ETCD, WATCH, SQLITE, REDIS)
FOLLOWERS = {1: RATE, 5: RATE, 50: 50.0}
"""Number -> changes per second: fewer for 50, because each change is then applied 50 times."""
WRITERS = 4


def measure_followers(plan: Plan, driver: str) -> Outcome:
    cases = [
        ChangeCase(
            _followed(system.name, count), system, [steady(plan, rate), flood(plan)], followers=count,
            peer=_followed(system.peer, count),
        )
        for count, rate in FOLLOWERS.items()
        for system in SYSTEMS
    ]  # fmt: skip
    return _outcome("changes_followers", plan, driver, cases)


def _followed(name: str, count: int) -> str:
    return f"{name}, {count} follower{'s' if count > 1 else ''}"


def measure_transactions(plan: Plan, driver: str) -> Outcome:
    """Only as fast as it goes.  etcd takes fewer writes in a transaction; its peer then does the same."""
    cases = []
    for system in SYSTEMS:
        limit = ETCD.together_max if system.database == ETCD.database else max(SIZES)
        phases = [flood(plan, min(size, limit)) for size in SIZES]
        cases.append(ChangeCase(system.name, system, phases, peer=system.peer))
    return _outcome("changes_transactions", plan, driver, cases)


def measure_service(plan: Plan, driver: str) -> Outcome:
    """Compared with a writer that publishes itself."""
    cases = []
    for system in (SQLITE, POSTGRES):
        served = dataclasses.replace(system, name=f"{system.name}, through the service", has_service=True)
        cases += [
            ChangeCase(served.name, served, [steady(plan), flood(plan)], peer=system.name),
            ChangeCase(system.name, system, [steady(plan), flood(plan)]),
        ]
    return _outcome("changes_service", plan, driver, cases)


def measure_writers(plan: Plan, driver: str) -> Outcome:
    """Each writes objects of its own."""
    cases = [
        ChangeCase(
            _written(system), system, [steady(plan), flood(plan)], writers=WRITERS,
            peer=f"{system.peer}, {WRITERS} writers",
        )
        for system in SYSTEMS
    ]  # fmt: skip
    return _outcome("changes_writers", plan, driver, cases)


def _written(system: ChangeSystem) -> str:
    return f"{system.name}, {WRITERS} writers"


def _outcome(scenario: str, plan: Plan, driver: str, cases: Sequence[ChangeCase]) -> Outcome:
    if driver != "zmq":
        return Outcome(scenario, driver, [], [], [SEE_ZMQ])
    findings = measure_in_turns(plan, cases)
    measured = {"missing": findings.missing()}
    compared: tuple[tuple[str, str, Callable[..., float]], ...] = (("p50", STEADY, p50_ms), ("rate", FLOOD, most))
    for name, phase, value in compared:
        found = findings.ratio(cases[0].name, cases[0].peer, phase, value)
        measured |= {} if found is None else {name: found}
    return Outcome(
        scenario, driver, rows(cases, findings), check(scenario, driver, measured), not_held(cases, findings)
    )
