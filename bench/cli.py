"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Sequence

from rich.console import Console

from bench import catalog, chart, profiles, report, results
from bench.plan import Outcome, Plan
from bench.scenarios import DEFAULT, SCENARIOS
from bench.workers import WorkerFailed

EVENTS, EVENTS_QUICK = 300_000, 10_000
ROUNDS, ROUNDS_QUICK = 5, 1
PLAIN_WIDTH = 150
"""Columns when the output is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, store.  Returns 1 when something could not be measured; a target that is missed is no failure."""
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    if options.profile:
        options.profile.mkdir(parents=True, exist_ok=True)
        os.environ[profiles.VARIABLE] = str(options.profile.resolve())
    with console.status("starting") as status:
        plan = Plan(
            events=options.events or (EVENTS_QUICK if options.quick else EVENTS),
            rounds=options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS),
            is_quick=options.quick,
            say=status.update,
        )
        outcomes, failures = _measure(console, plan, options.scenarios, _usable(console, options.drivers))
    if outcomes:
        _keep(console, plan, outcomes, options.results)
    if options.profile:
        profiles.show(console, options.profile)
    return 1 if failures or not outcomes else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure Heliograph against the raw transports.")
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", default=list(DEFAULT),
        help=f"{', '.join(SCENARIOS)}, or all; {', '.join(DEFAULT)} when none is named",
    )  # fmt: skip
    parser.add_argument("--driver", default=",".join(catalog.DRIVERS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help=f"rounds, of which the median counts (default: {ROUNDS})")
    parser.add_argument("--events", type=int, help=f"events of a run; each case takes its share (default: {EVENTS})")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: shows that it works, nothing more")
    parser.add_argument("--results", type=pathlib.Path, default=results.DIRECTORY, help="directory for JSON and PNG")
    parser.add_argument("--profile", type=pathlib.Path, help="profile every process, and write what it found there")
    options = parser.parse_args(arguments)
    if "all" in options.scenarios:
        options.scenarios = list(SCENARIOS)
    options.drivers = options.driver.split(",")
    for given, known in ((options.scenarios, SCENARIOS), (options.drivers, catalog.DRIVERS)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is none of {', '.join(known)}")
    return options


def _usable(console: Console, drivers: Sequence[str]) -> list[str]:
    usable = []
    for driver in drivers:
        reason = catalog.problem(driver)
        if reason is None:
            usable.append(driver)
        else:
            console.print(f"[yellow]{driver} is left out:[/] {reason}")
    return usable


def _measure(
    console: Console, plan: Plan, scenarios: Sequence[str], drivers: Sequence[str]
) -> tuple[list[Outcome], int]:
    """The outcomes, printed as they come, and how many scenarios failed."""
    outcomes: list[Outcome] = []
    failures = 0
    for name in scenarios:
        for driver in drivers:
            try:
                outcome = SCENARIOS[name](plan, driver)
            except WorkerFailed as error:
                failures += 1
                console.print(f"[red]{name}, {driver}: not measured.[/] {error}", markup=True)
            else:
                outcomes.append(outcome)
                report.show(console, outcome)
    return outcomes, failures


def _keep(console: Console, plan: Plan, outcomes: Sequence[Outcome], directory: pathlib.Path) -> None:
    stored = results.store(plan, outcomes, directory)
    console.print(f"results: {stored}")
    try:
        console.print(f"chart: {chart.draw(stored)}")
    except ImportError as error:
        console.print(f"[yellow]no chart was drawn:[/] {error}")
