"""Progress of long work, on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from heliograph.output import note

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_LINE_INTERVAL_S = 5.0


class Progress:
    """Counts up to ``total``; use it in a ``with`` and call `update` as often as convenient, from one thread."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._start = time.monotonic()
        self._last_line = self._start
        self._bar: RichProgress | None = None
        if sys.stderr.isatty() or os.environ.get("FORCE_COLOR"):  # by this variable rich assumes a terminal, too
            self._bar = _make_bar()
            self._task = self._bar.add_task(what, total=total, rate="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    def update(self, done: int, remark: str = "") -> None:
        """Show that ``done`` of the total are done."""
        per_second = done / max(self.elapsed_s, 1e-9)
        rate = f"{per_second:,.0f}/s{remark}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=rate)
        elif time.monotonic() - self._last_line >= _LINE_INTERVAL_S:
            self._last_line = time.monotonic()
            left_s = (self._total - done) / max(per_second, 1e-9)
            note(f"{self._what}: {done:,} of {self._total:,}, {rate}, {left_s:.0f} s left")


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """For work whose total is known only while it runs: call the result with (done, total)."""
    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def update(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(Progress(what, total)))
            bars[0].update(done)

        yield update


def _make_bar() -> RichProgress:
    # Imported here: without a terminal the library is not needed.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
