"""How the demonstration is shown while it runs: a live table, plain lines, or nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from heliograph.demo.runner import DemoProcess
from heliograph.output import make_table

COLUMNS = ("controller", "state", "behind", "objects", "events", "frames lost", "gaps", "repaired", "resyncs")
_LINE_INTERVAL_S = 2.0


def cells(name: str, state: str, revision: int, counters: dict[str, Any]) -> list[object]:
    """A controller's row under `COLUMNS`."""
    return [
        name,
        state,
        max(0, revision - counters.get("revision", 0)),
        counters.get("rows", 0),
        counters.get("received", 0),
        counters.get("dropped", 0),
        counters.get("gaps", 0),
        counters.get("repaired", 0),
        counters.get("resyncs", 0),
    ]


class Screen:
    """Shows nothing: the base of the others, and the screen of scripts."""

    def say(self, at_s: float, text: str) -> None:
        """Show that a step has happened."""

    def show(self, revision: int, controllers: Sequence[tuple[DemoProcess, bool]]) -> None:
        """Show the present state of the controllers, each with whether it is frozen."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class PlainScreen(Screen):
    """Lines, for a pipe or a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def say(self, at_s: float, text: str) -> None:
        self._console.print(f"{at_s:5.1f} s  {text}", soft_wrap=True)

    def show(self, revision: int, controllers: Sequence[tuple[DemoProcess, bool]]) -> None:
        reached = [process.state["revision"] for process, _ in controllers if "revision" in process.state]
        if reached and len(reached) == len(controllers) and time.monotonic() - self._last >= _LINE_INTERVAL_S:
            self._last = time.monotonic()
            lags = sorted(max(0, revision - one) for one in reached)
            line = f"{revision} changes; behind: {lags[len(lags) // 2]} (median), {lags[-1]} (most)"
            self._console.print(f"         {line}", soft_wrap=True)


class LiveScreen(Screen):
    """A table that changes in its place, below the steps."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, at_s: float, text: str) -> None:
        self._live.console.print(f"{at_s:5.1f} s  {text}")

    def show(self, revision: int, controllers: Sequence[tuple[DemoProcess, bool]]) -> None:
        rows = [cells(process.name, "frozen" if is_frozen else "runs", revision, process.state)
                for process, is_frozen in controllers]  # fmt: skip
        self._live.update(make_table(f"changes of the database: {revision}", COLUMNS, rows), refresh=True)
