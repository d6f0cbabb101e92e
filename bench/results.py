"""Results as JSON, one file per run, and what one has to know of the machine to read them."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

from bench.plan import Outcome, Plan

DIRECTORY = pathlib.Path(__file__).parent / "results"
LIBRARIES = ("pyzmq", "eclipse-zenoh", "redis", "hiredis", "grpcio", "msgspec", "msgpack")


def store(plan: Plan, outcomes: Sequence[Outcome], directory: pathlib.Path = DIRECTORY) -> pathlib.Path:
    """Write a file named by the time of day; returns its path."""
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{now:%Y%m%dT%H%M%SZ}.json"
    content = {
        "finished": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "events": plan.events,
        "rounds": plan.rounds,
        "outcomes": [dataclasses.asdict(outcome) | {"checks": _checks(outcome)} for outcome in outcomes],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _checks(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        dataclasses.asdict(check.target) | {"driver": check.driver, "measured": check.measured, "met": check.is_met}
        for check in outcome.checks
    ]
