"""The benchmark of the way from a commit to the copies, at tiny sizes: it runs, and no copy lacks a change."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence

import pytest

from bench import change_cases, change_runs, change_systems, database_servers, server_process
from bench.change_cases import ChangeCase, ChangeFindings, flood, measure_in_turns, not_held, rows, steady
from bench.change_ends import OBJECTS, ChangeSystem, CopySink, object_write
from bench.change_runs import ChangeRun, Phase
from bench.database_servers import DatabaseServer
from bench.plan import Plan
from bench.scenarios import SCENARIOS, changes
from bench.targets import TARGETS

pytestmark = pytest.mark.usefixtures("warm_workers")

PLAN = Plan(events=300, rounds=1, is_quick=True, say=lambda _: None)


def a_run(**other: object) -> ChangeRun:
    blank = ChangeRun(300, 1.0, 1.0, array("q", [1_000_000]), 10.0, 5.0, 1.0, 0.0, 0)
    return dataclasses.replace(blank, **other)  # type: ignore[arg-type]


def a_case(name: str = "ours", **other: object) -> ChangeCase:
    blank = ChangeCase(name, change_systems.SQLITE, [steady(PLAN), flood(PLAN)])
    return dataclasses.replace(blank, **other)  # type: ignore[arg-type]


# -- what is written


def test_an_object_has_the_size_it_claims() -> None:
    import msgspec

    write = object_write(499, 123_456)
    assert 130 <= len(msgspec.msgpack.encode(write.value)) <= 170


def test_transactions_stay_in_one_topic_and_write_an_object_once() -> None:
    for first in range(0, OBJECTS, 100):
        writes = [object_write(place, 0) for place in range(first, first + 100)]
        assert len({write.topic for write in writes}) == 1
        assert len({write.key for write in writes}) == 100


def test_a_phase_ends_after_its_time() -> None:
    made: list[int] = []
    assert change_runs.write_for(Phase("p", 0.01, size=10), made.append) == 10 * len(made)
    assert made == list(range(0, 10 * len(made), 10))


def test_a_rate_is_not_exceeded() -> None:
    begun = time.monotonic()
    count = change_runs.write_for(Phase("p", 0.05, rate=200.0), lambda _: None)
    assert count <= (time.monotonic() - begun) * 200.0 + 1


def test_a_sink_says_what_a_copy_lacks() -> None:
    sink = CopySink()
    sink.on_change("a", {"at": time.monotonic_ns(), "number": 7})
    assert sink.wait({"a": 7}, quiet_s=0) == 0
    assert sink.wait({"a": 8, "b": 1}, quiet_s=0) == 2


# -- systems


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[[str], DatabaseServer]]:
    """Gives a server of a kind, started once."""
    servers: dict[str, DatabaseServer] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> DatabaseServer:
            problem = database_servers.problem(kind)
            if problem is not None:
                pytest.skip(problem)
            if kind not in servers:
                servers[kind] = stack.enter_context(database_servers.running(kind))
            return servers[kind]

        yield get


SAMPLE = (change_systems.REDIS,)
"""`test_several_writers_and_the_service_lose_nothing` is another; `./run chaos` runs all systems."""


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(system, id=system.name, marks=[] if system in SAMPLE else [pytest.mark.chaos])
        for system in (*change_systems.ALL, change_systems.SQLITE_ALONE)
    ],
)
def test_every_copy_gets_every_change(system: ChangeSystem, server_of: Callable[[str], DatabaseServer]) -> None:
    followers = 0 if system.follower is None else 1
    phases = [steady(PLAN), flood(PLAN), flood(PLAN, 10)]
    done = change_runs.run(system, server_of(system.database), phases, followers=followers)
    assert list(done) == [phase.name for phase in phases]
    for run in done.values():
        assert run.missing == 0
        assert run.changes > 0
        assert bool(run.latencies_ns) == bool(followers)


def test_several_writers_and_the_service_lose_nothing() -> None:
    served = dataclasses.replace(change_systems.SQLITE, has_service=True)
    with database_servers.running("sqlite") as server:
        (run,) = change_runs.run(served, server, [flood(PLAN)], followers=1, writers=2).values()
    assert run.missing == 0
    assert run.service_cpu_us > 0


def test_the_cpu_of_a_process_counts_that_of_its_children() -> None:
    before = server_process.cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert server_process.cpu_s(os.getpid()) > before


# -- cases and rows


def test_ratios_are_taken_with_the_peer() -> None:
    findings = ChangeFindings({})
    findings.add("ours", change_cases.STEADY, a_run(latencies_ns=array("q", [2_000_000])))
    findings.add("ours", change_cases.FLOOD, a_run(seconds=0.5))
    findings.add("peer", change_cases.STEADY, a_run())
    findings.add("peer", change_cases.FLOOD, a_run())
    made = rows([a_case(peer="peer"), a_case("peer")], findings)
    assert [row["case"] for row in made] == ["ours, 300/s", "ours, full speed", "peer, 300/s", "peer, full speed"]
    assert (made[0]["p50/peer"], made[1]["rate/peer"]) == (2.0, 2.0)
    assert "p50/peer" not in made[2]


def test_what_is_absent_has_a_row_that_says_so() -> None:
    findings = ChangeFindings({"ours": "not there: ovsdb-server"})
    assert rows([a_case()], findings) == [{"case": "ours is not there: ovsdb-server"}]
    assert not_held([a_case()], findings) == []


def test_a_rate_that_is_not_held_is_told() -> None:
    findings = ChangeFindings({})
    findings.add("ours", change_cases.STEADY, a_run(committing_s=2.0))
    findings.add("ours", change_cases.FLOOD, a_run())
    assert not_held([a_case()], findings) == ["ours: 300 changes/s were not held, it reached 150"]


# -- scenarios, with runs that are made up


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every database is there, and every run measures the same."""

    @contextlib.contextmanager
    def running(_kind: str) -> Iterator[DatabaseServer]:
        yield DatabaseServer(lambda: "")

    def run(_system: ChangeSystem, _server: DatabaseServer, phases: Sequence[Phase], **_: int) -> dict[str, ChangeRun]:
        return {phase.name: a_run() for phase in phases}

    monkeypatch.setattr(database_servers, "running", running)
    monkeypatch.setattr(database_servers, "problem", lambda _kind: None)
    monkeypatch.setattr(change_runs, "run", run)


@pytest.mark.usefixtures("made_up")
def test_cases_take_turns() -> None:
    said: list[str] = []
    findings = measure_in_turns(dataclasses.replace(PLAN, rounds=2, say=said.append), [a_case("a"), a_case("b")])
    assert [sentence[-1] for sentence in said] == ["a", "b", "a", "b"]
    assert len(findings.runs("a", change_cases.FLOOD)) == 2


@pytest.mark.usefixtures("made_up")
def test_the_scenario_checks_every_target() -> None:
    outcome = changes.measure(PLAN, "zmq")
    assert {found.target.name for found in outcome.checks} == {
        target.name for target in TARGETS if target.scenario == "changes"
    }
    assert len(outcome.rows) == 2 * len(change_systems.ALL) + 2 * len(changes.SIZES)
    assert changes.measure(PLAN, "redis").rows == []


@pytest.mark.usefixtures("made_up")
def test_what_is_absent_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_servers, "problem", lambda kind: None if kind == "sqlite" else "not there")
    outcome = changes.measure(PLAN, "zmq")
    assert {found.target.name for found in outcome.checks} == {"held", "missing", "by 1", "by 10", "by 100"}


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("changes_")])
def test_further_rows_are_scenarios(name: str) -> None:
    outcome = SCENARIOS[name](PLAN, "zmq")
    assert {found.target.name for found in outcome.checks} == {
        target.name for target in TARGETS if target.scenario == name
    }
    assert any("/peer" in column for row in outcome.rows for column in row)
    assert SCENARIOS[name](PLAN, "redis").rows == []
