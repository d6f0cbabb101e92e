"""Cases of the way from a commit to the copies, measured in turns, and the rows that show them.

All cases of a scenario take turns within a round, each next to the one it is compared with, and ratios are taken within
rounds: whatever else the machine does meets both alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench import change_runs, database_servers
from bench.change_ends import ChangeSystem
from bench.change_runs import ChangeRun, Phase
from bench.database_servers import DatabaseServer
from bench.plan import Plan, Row, median, percentile_us, ratio

FOLLOWERS = 5
RATE = 300.0
STEADY, FLOOD = "steady", "flood"
STEADY_S, FLOOD_S, QUICK_S = 5.0, 2.0, 0.3
HELD = 0.98
"""A rate counts as held when at least this part of it was reached."""


@dataclasses.dataclass(frozen=True)
class ChangeCase:
    """A system, its users, and what is written."""

    name: str
    system: ChangeSystem
    phases: Sequence[Phase]
    followers: int = FOLLOWERS
    writers: int = 1
    peer: str = ""
    """The name of the case that it is compared with, phase by phase."""


def steady(plan: Plan, rate: float = RATE) -> Phase:
    """Lone changes at a rate."""
    return Phase(STEADY, QUICK_S if plan.is_quick else STEADY_S, rate=rate)


def flood(plan: Plan, size: int = 1) -> Phase:
    """Transactions of so many changes, one after the other."""
    return Phase(FLOOD if size == 1 else f"{FLOOD} by {size}", QUICK_S if plan.is_quick else FLOOD_S, size=size)


class ChangeFindings:
    """What the cases of a scenario measured."""

    def __init__(self, absent: Mapping[str, str]) -> None:
        self.absent = absent
        """Case -> why it could not be measured."""
        self._runs: dict[tuple[str, str], list[ChangeRun]] = {}

    def add(self, case: str, phase: str, run: ChangeRun) -> None:
        self._runs.setdefault((case, phase), []).append(run)

    def runs(self, case: str, phase: str) -> list[ChangeRun]:
        """One for every round; none when the case was not measured, or has no such phase."""
        return self._runs.get((case, phase), [])

    def median(self, case: str, phase: str, value: Callable[[ChangeRun], float]) -> float:
        return median(self.runs(case, phase), value)

    def ratio(self, case: str, peer: str, phase: str, value: Callable[[ChangeRun], float]) -> float | None:
        """None when one of the two was not measured."""
        ours, theirs = self.runs(case, phase), self.runs(peer, phase)
        return ratio(ours, theirs, value) if ours and theirs else None

    def missing(self) -> float:
        """Objects whose last change a copy did not get, in all cases and rounds."""
        return float(sum(run.missing for runs in self._runs.values() for run in runs))


def measure_in_turns(plan: Plan, cases: Sequence[ChangeCase]) -> ChangeFindings:
    """Every case once per round.  Raises WorkerFailed."""
    with _servers(cases) as (running, absent):
        findings = ChangeFindings(absent)
        for number in range(1, plan.rounds + 1):
            for case in cases:
                if case.name in absent:
                    continue
                plan.say(f"round {number} of {plan.rounds}: {case.name}")
                server = running[case.system.database]
                done = change_runs.run(
                    case.system, server, case.phases, followers=case.followers, writers=case.writers
                )  # fmt: skip
                for phase, run in done.items():
                    findings.add(case.name, phase, run)
    return findings


@contextlib.contextmanager
def _servers(cases: Sequence[ChangeCase]) -> Iterator[tuple[Mapping[str, DatabaseServer], dict[str, str]]]:
    """The servers that are needed, by kind, and why cases cannot be measured, by name."""
    with contextlib.ExitStack() as stack:
        kinds = sorted({case.system.database for case in cases})
        problems = {kind: database_servers.problem(kind) for kind in kinds}
        running = {
            kind: stack.enter_context(database_servers.running(kind)) for kind in kinds if problems[kind] is None
        }
        absent = {case.name: problems[case.system.database] for case in cases}
        yield running, {name: problem for name, problem in absent.items() if problem is not None}


# -- what is read off a run


def p50_ms(run: ChangeRun) -> float:
    return percentile_us(run.latencies_ns, 0.5) / 1000


def p99_ms(run: ChangeRun) -> float:
    return percentile_us(run.latencies_ns, 0.99) / 1000


def p999_ms(run: ChangeRun) -> float:
    return percentile_us(run.latencies_ns, 0.999) / 1000


def most(run: ChangeRun) -> float:
    """Changes per second until the last follower has them."""
    return run.changes_per_s


def committed_per_s(run: ChangeRun) -> float:
    return run.committed_per_s


def writer_us(run: ChangeRun) -> float:
    return run.writer_cpu_us


def follower_us(run: ChangeRun) -> float:
    return run.follower_cpu_us


# -- rows


def rows(cases: Sequence[ChangeCase], findings: ChangeFindings) -> list[Row]:
    """One for each case and phase, and one for each case that could not be measured."""
    made: list[Row] = []
    for case in cases:
        if case.name in findings.absent:
            made.append({"case": f"{case.name} is {findings.absent[case.name]}"})
        else:
            made += [_row(case, phase, findings) for phase in case.phases]
    return made


def _row(case: ChangeCase, phase: Phase, findings: ChangeFindings) -> Row:
    runs = findings.runs(case.name, phase.name)
    what = f"{phase.rate:g}/s" if phase.rate else "full speed" if phase.size == 1 else f"full speed by {phase.size}"
    row: Row = {"case": f"{case.name}, {what}"}
    row["changes/s"] = round(median(runs, committed_per_s if phase.rate else most))
    if phase.rate:
        row |= {
            "p50 ms": round(median(runs, p50_ms), 2),
            "p99 ms": round(median(runs, p99_ms), 1),
            "p99.9 ms": round(median(runs, p999_ms), 1),
        }
    row["writer us"] = round(median(runs, writer_us), 1)
    if case.followers:
        row["copy us"] = round(median(runs, follower_us), 1)
    row["server us"] = round(median(runs, lambda run: run.server_cpu_us), 1)
    if case.system.has_service:
        row["service us"] = round(median(runs, lambda run: run.service_cpu_us), 1)
    row["lost"] = sum(run.missing for run in runs)
    compared = {"p50": p50_ms, "p99": p99_ms} if phase.rate else {"rate": most}
    for name, value in compared.items():
        found = findings.ratio(case.name, case.peer, phase.name, value)
        if found is not None:
            row[f"{name}/peer"] = round(found, 2)
    return row


def not_held(cases: Sequence[ChangeCase], findings: ChangeFindings) -> list[str]:
    """A sentence for each case that did not reach its rate."""
    return [
        f"{case.name}: {phase.rate:g} changes/s were not held, it reached {reached:.0f}"
        for case in cases
        if case.name not in findings.absent
        for phase in case.phases
        if phase.rate and (reached := findings.median(case.name, phase.name, committed_per_s)) < HELD * phase.rate
    ]
