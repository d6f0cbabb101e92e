"""``heliograph drivers``: which drivers are installed and what each can do."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from heliograph import exits, options
from heliograph.output import Output
from pubsub_api import Capabilities, loading
from pubsub_api.config import new_conf
from pubsub_api.errors import HeliographError

DESCRIPTION = """\
List the installed drivers and what each can do under its default configuration.

A driver is a package's entry point under heliograph.pubsub_driver.  A driver whose library is missing is listed with
what to install.  The command connects to nothing.
"""
EXAMPLES = """\
  heliograph drivers
  heliograph drivers --json | jq '.[] | select(.usable) | .name'
  heliograph drivers --markdown
"""

COLUMNS = (
    "driver", "address", "queries", "wildcards", "largest frame", "survives fork", "reports", "security",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One driver.  Several names of the same class are one driver with aliases."""

    name: str
    aliases: list[str]
    target: str
    usable: bool
    capabilities: Capabilities | None
    problem: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    options.add_json(form, "one JSON array")
    form.add_argument("--markdown", action="store_true", help="the table of the documentation")


def run(args: argparse.Namespace, output: Output) -> int:
    rows = find_drivers()
    if args.json:
        output.record([_record(row) for row in rows])
    elif args.markdown:
        output.line(markdown(rows))
    else:
        output.table("drivers", COLUMNS, [_cells(row) for row in rows if row.capabilities])
        for row in rows:
            if row.problem:
                output.line(f"not usable: {row.problem}", style="yellow")
            elif row.aliases:
                output.line(f"{row.name} is also known as {', '.join(row.aliases)}", style="dim")
    return exits.OK


def find_drivers() -> list[Row]:
    """Every installed driver, sorted by name; of several names of one driver the shortest is the name."""
    names: dict[str, list[str]] = {}
    statuses = loading.available_drivers()
    for name in sorted(statuses, key=lambda name: (len(name), name)):
        names.setdefault(statuses[name].target, []).append(name)
    return sorted((_row(found, statuses[found[0]]) for found in names.values()), key=lambda row: row.name)


def _row(names: list[str], status: loading.DriverStatus) -> Row:
    capabilities = None
    problem = None if status.problem is None else str(status.problem)
    if status.usable:
        try:
            capabilities = loading.build_driver(new_conf(), names[0]).capabilities
        except HeliographError as error:
            problem = str(error)
    return Row(names[0], names[1:], status.target, capabilities is not None, capabilities, problem)


def _record(row: Row) -> dict[str, Any]:
    record = dataclasses.asdict(row)
    if row.capabilities is not None:
        record["capabilities"]["reports"] = sorted(row.capabilities.reports)
        record["capabilities"]["security"] = sorted(row.capabilities.security)
    return record


def _cells(row: Row) -> list[str]:
    able = row.capabilities
    assert able is not None
    return [
        row.name,
        "the publisher's" if able.bind_based else "shared",
        "yes" if able.queries else "no",
        "exact" if able.native_wildcards else "filtered on arrival",
        _size(able.frame_bytes_max),
        "yes" if able.fork_safe else "no",
        ", ".join(sorted(able.reports)) or "nothing",
        ", ".join(sorted(able.security)) or "none",
    ]


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size + unit // 10 >= unit:
            return f"{round(size / unit)} {name}"
    return f"{size} B"


def markdown(rows: list[Row]) -> str:
    """The table of the documentation: usable drivers only."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    lines += [[f"`{row.name}`", *_cells(row)[1:]] for row in rows if row.capabilities]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
