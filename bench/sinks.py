"""What receivers call with each event.  The same sink is used for every case of a comparison."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

NS_PER_S = 1_000_000_000


class Sink:
    """Counts.  It is as near to a callback that does nothing as one can come that knows when it is over."""

    def __init__(self, expected: int, version_of: Callable[[Any], int]) -> None:
        self.expected = expected
        self.received = 0
        self.ended_ns = 0
        """When the last event came."""
        self._version_of = version_of
        self._over = threading.Event()

    def on_event(self, _event: Any) -> None:
        self.received += 1
        if self.received == self.expected:
            self.finish()

    def on_resync(self) -> None:
        """The receiver was told of a loss.  Raw receivers never are."""

    def start(self) -> None:
        """The subscription is in effect and nothing has been published yet."""

    def finish(self) -> None:
        self.ended_ns = time.monotonic_ns()
        self._over.set()

    def give_up(self, quiet_s: float) -> None:
        """Nothing came for ``quiet_s``."""
        self.ended_ns = time.monotonic_ns() - int(quiet_s * NS_PER_S)

    def wait(self, timeout_s: float) -> bool:
        """True when everything came; False after ``timeout_s``."""
        return self._over.wait(timeout_s)

    def findings(self) -> dict[str, Any]:
        """What it saw, to be sent to the parent."""
        return {"received": self.received, "ended_ns": self.ended_ns}


class LatencySink(Sink):
    """Versions are monotonic clock readings, taken just before the event was published; the clock is the machine's."""

    def __init__(self, expected: int, version_of: Callable[[Any], int]) -> None:
        super().__init__(expected, version_of)
        self._latencies_ns = array("q")

    def on_event(self, event: Any) -> None:
        self._latencies_ns.append(time.monotonic_ns() - self._version_of(event))
        super().on_event(event)

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"latencies_ns": self._latencies_ns}


class RepairSink(LatencySink):
    """Notes as well which event it was, by its version."""

    def __init__(self, expected: int, version_of: Callable[[Any], int]) -> None:
        super().__init__(expected, version_of)
        self._versions = array("q")

    def on_event(self, event: Any) -> None:
        self._versions.append(self._version_of(event))
        super().on_event(event)

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"versions": self._versions}


class AuditSink(Sink):
    """Versions are 1, 2, 3, ...: notes what is missing, what is out of order or repeated, and when a resync was told.

    With ``rate_max`` it takes no more events per second than that, so that a slow subscriber can be played.
    """

    def __init__(self, expected: int, version_of: Callable[[Any], int], rate_max: float | None = None) -> None:
        super().__init__(expected, version_of)
        self._rate_max = rate_max
        self._next = 1
        self._resync_ns = 0
        self._holes: list[tuple[int, int]] = []
        """First and last missing number."""
        self._misplaced = 0
        self._started_ns = 0

    def start(self) -> None:
        self._resync_ns = 0

    def on_resync(self) -> None:
        self._resync_ns = time.monotonic_ns()

    def on_event(self, event: Any) -> None:
        number = self._version_of(event)
        if number < self._next:
            self._misplaced += 1
            return
        if number > self._next:
            self._holes.append((self._next, number - 1))
        self._next = number + 1
        self.received += 1
        if self._rate_max is not None:
            self._keep_pace(self._rate_max)
        if number == self.expected:
            self.finish()

    def _keep_pace(self, rate_max: float) -> None:
        now = time.monotonic_ns()
        self._started_ns = self._started_ns or now
        ahead_s = self.received / rate_max - (now - self._started_ns) / NS_PER_S
        if ahead_s > 0.001:
            time.sleep(ahead_s)

    def findings(self) -> dict[str, Any]:
        holes = list(self._holes)
        if self._next <= self.expected:
            holes.append((self._next, self.expected))
        return super().findings() | {"holes": holes, "misplaced": self._misplaced, "resync_ns": self._resync_ns}
