"""What the processes of a run spend their time on, per event: ``./run bench changes --profile DIRECTORY``.

Every worker profiles all its threads and writes a file that ``python -m pstats`` reads.  The table counts calls and own
time per event, where an event is one call of the function that makes it or gets it.  Calls are exact and the same on
every machine; times are not to be compared with a run that is not profiled.

From Python 3.12 on one profile covers all threads; before, each thread has its own, and they are added.
"""

from __future__ import annotations

import contextlib
import cProfile
import os
import pathlib
import pstats
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

VARIABLE = "HELIOGRAPH_BENCH_PROFILE"
"""Names the directory for the processes that are started."""
ROWS = 25
_UNITS = {
    "write": ("change_runs.py", "put"),
    "follow": ("change_ends.py", "on_change"),
    "control": ("change_ends.py", "on_change"),
    "publish": ("ours.py", "send"),
    "subscribe": ("sinks.py", "on_event"),
}
"""Role of a worker -> where the function is that is called once per event, and its name."""
_WAITING = ("acquire", "poll", "select", "sleep", "epoll", "get", "wait", "recv", "zmq_poll")
"""Built-in functions in which a thread does nothing but wait."""
_ONE_FOR_ALL = sys.version_info >= (3, 12)


class FunctionCost(NamedTuple):
    """Per event."""

    name: str
    calls: float
    own_us: float


@contextlib.contextmanager
def recording(role: str) -> Iterator[None]:
    """Profile this process, if the environment says so, from here to the end of the block, and write the file."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        yield
        return
    profiles = [cProfile.Profile()]

    def begin(*_: Any) -> None:
        """Called by a new thread, at its first event."""
        profiles.append(cProfile.Profile())
        profiles[-1].enable()

    if not _ONE_FOR_ALL:
        threading.setprofile(begin)
    profiles[0].enable()
    try:
        yield
    finally:
        threading.setprofile(None)
        total = pstats.Stats(profiles[0])
        for profile in profiles[1:]:
            total.add(profile)
        total.dump_stats(pathlib.Path(directory) / f"{role}-{os.getpid()}.pstats")


def costs(path: pathlib.Path) -> tuple[int, list[FunctionCost]]:
    """How many events a file tells of, and what each of them cost, by own time.  0 when it is not known what one is."""
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = vars(pstats.Stats(str(path)))["stats"]
    module, function = _UNITS.get(path.name.partition("-")[0], ("", ""))
    events = sum(
        called for (where, _, name), (_, called, *_) in stats.items() if name == function and where.endswith(module)
    )
    if not events:
        return 0, []
    found = [
        FunctionCost(_label(*place), called / events, own_s / events * 1e6)
        for place, (_, called, own_s, *_) in stats.items()
        if not _is_waiting(*place)
    ]
    return events, sorted(found, key=lambda cost: -cost.own_us)


def _label(where: str, line: int, name: str) -> str:
    return name if where == "~" else f"{'/'.join(pathlib.Path(where).parts[-3:])}:{line} {name}"


def _is_waiting(where: str, _line: int, name: str) -> bool:
    return where == "~" and any(f"'{word}'" in name or f".{word}>" in name for word in _WAITING)


def show(console: Console, directory: pathlib.Path) -> None:
    """Of every role the process that had most to do."""
    largest: dict[str, tuple[int, pathlib.Path, list[FunctionCost]]] = {}
    for path in sorted(directory.glob("*.pstats")):
        role = path.name.partition("-")[0]
        events, found = costs(path)
        if events > largest.get(role, (0,))[0]:
            largest[role] = (events, path, found)
    for role, (events, path, found) in largest.items():
        calls = sum(cost.calls for cost in found)
        title = f"{role}: {calls:.0f} calls per event, {events:,} events ({path})"
        table = Table("function", "calls", "own us", title=title, title_justify="left")
        for cost in found[:ROWS]:
            table.add_row(cost.name, f"{cost.calls:.2f}", f"{cost.own_us:.2f}")
        console.print(table)
