"""Shows outcomes to a person: a table of figures and a table of targets per scenario and driver."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from bench.plan import Outcome, Row
from bench.targets import Check


def show(console: Console, outcome: Outcome) -> None:
    console.print(_figures(outcome))
    if outcome.checks:
        console.print(targets(outcome.checks))
    for note in outcome.notes:
        console.print(note)


def _figures(outcome: Outcome) -> Table:
    table = Table(title=f"{outcome.scenario}, {outcome.driver}", title_justify="left")
    columns = list(dict.fromkeys(name for row in outcome.rows for name in row))
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in outcome.rows:
        table.add_row(*(_cell(row, name) for name in columns))
    return table


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def targets(checks: list[Check]) -> Table:
    table = Table("no.", "driver", "target", "wanted", "measured", "", title="targets", title_justify="left")
    for check in checks:
        target = check.target
        verdict = "[green]met[/]" if check.is_met else "[red]not met[/]"
        wanted = f"{target.relation} {target.bound:g} {target.unit}"
        table.add_row(str(target.number), check.driver, target.what, wanted, f"{check.measured:.2f}", verdict)
    return table
