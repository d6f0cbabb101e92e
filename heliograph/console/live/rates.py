"""Rates over the last minutes as charts, drawn by the server, with the numbers in words beside each."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

from heliograph.console.markup import Markup, joined, known, tag

SPAN_S = 300.0
STEP_S = 2.0
"""Of the values within one step, the first is kept."""
_WIDTH, _HEIGHT = 300, 60


class RateHistory:
    """The values of the last minutes.  May be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._points: dict[str, collections.deque[tuple[float, float | None]]] = {}

    def add(self, name: str, value: float | None) -> None:
        """Add a value; None means that it is not known."""
        now = self._clock()
        with self._lock:
            points = self._points.setdefault(name, collections.deque(maxlen=int(SPAN_S / STEP_S) + 1))
            if not points or now - points[-1][0] >= STEP_S:
                points.append((now, value))

    def lines(self) -> dict[str, list[tuple[float, float | None]]]:
        """Name -> age in seconds and value, oldest first."""
        now = self._clock()
        with self._lock:
            return {
                name: [(now - at, value) for at, value in points if now - at <= SPAN_S]
                for name, points in self._points.items()
            }


def charts(history: RateHistory) -> Markup:
    return tag("div", *(_chart(name, points) for name, points in history.lines().items()), class_="charts")


def _chart(name: str, points: list[tuple[float, float | None]]) -> Markup:
    values = [value for _, value in points if value is not None]
    most = max(values, default=0.0)
    now = points[-1][1] if points else None
    words = joined(("now ", known(None if now is None else f"{now:,.1f}"), f", at most {most:,.1f}"))
    drawn: list[list[str]] = [[]]
    for age_s, value in points:
        if value is None:
            drawn.append([])  # an unknown value is a gap in the line
        else:
            across, down = _WIDTH * (1 - age_s / SPAN_S), (_HEIGHT - 2) * (1 - (value / most if most else 0)) + 1
            drawn[-1].append(f"{across:.1f},{down:.1f}")
    lines = [tag("polyline", points=" ".join(one)) for one in drawn if len(one) > 1]
    picture = tag("svg", *lines, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", class_="chart",
                  role="img", aria_label=f"{name} over the last {SPAN_S / 60:.0f} minutes")  # fmt: skip
    return tag("figure", tag("figcaption", tag("strong", name), " ", words), picture)
