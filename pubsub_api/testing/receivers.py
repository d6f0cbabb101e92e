"""Waiting in tests of drivers: a receiver that records what a driver gives it, and waits with a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pubsub_api.driver import Connected, LinkReport, PublisherApi
from pubsub_api.errors import TransportUnavailable, WaitTimeout

WAIT_S = float(os.environ.get("HELIOGRAPH_CONFORMANCE_WAIT_S", "10"))
"""How long a test waits by default before it fails.  A heavily loaded machine may need more."""
POLL_S = 0.01

_Result = TypeVar("_Result")


def eventually(condition: Callable[[], _Result], what: str, timeout_s: float = WAIT_S) -> _Result:
    """Call ``condition`` every few milliseconds until it returns something true; return that.  Raises WaitTimeout."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        is_late = time.monotonic() >= deadline
        result = condition()
        if result:
            return result
        if is_late:
            raise WaitTimeout(f"{what}: not within {timeout_s} s")
        pause.wait(POLL_S)


def send_until_accepted(publisher: PublisherApi, topic: str, frame: bytes) -> None:
    """Send a frame, again and again while the transport cannot take it.  Raises WaitTimeout."""

    def is_sent() -> bool:
        try:
            publisher.send(topic, frame)
        except TransportUnavailable:
            return False
        return True

    eventually(is_sent, f"the transport accepts a frame of {len(frame)} bytes")


def in_threads(count: int, work: Callable[[int], _Result]) -> list[_Result]:
    """Call ``work(0)`` ... ``work(count - 1)``, each in a thread of its own; the results.  Raises what they raise."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


class RecordingReceiver:
    """Keeps frames, foreign messages and link reports in order of arrival.

    A publisher can report to its `on_link`, too.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.frames: list[bytes] = []
        self.foreign: list[tuple[str, bytes | None]] = []
        self.links: list[LinkReport] = []
        self.calls = 0
        """Calls of the driver, of any method."""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        with self._changed:
            self.calls += 1
            self.frames.extend(frames)
            self._changed.notify_all()

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        with self._changed:
            self.calls += 1
            self.foreign.append((topic, payload))
            self._changed.notify_all()

    def on_link(self, report: LinkReport) -> None:
        with self._changed:
            self.calls += 1
            self.links.append(report)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Block until ``condition`` returns True; it is called again after every call of the driver.

        Raises WaitTimeout, which shows ``what`` and what has arrived.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise WaitTimeout(
                    f"{what}: not within {timeout_s} s; so far {len(self.frames)} frames, {len(self.foreign)} foreign "
                    f"messages, link reports {self.links[-5:]}"
                )

    def wait_frames(self, count: int, timeout_s: float = WAIT_S) -> list[bytes]:
        """Block until at least ``count`` frames have arrived; return all that have."""
        self.wait_until(lambda: len(self.frames) >= count, f"{count} frames", timeout_s)
        return list(self.frames)

    def wait_frame(self, frame: bytes, timeout_s: float = WAIT_S) -> None:
        """Block until this frame has arrived."""
        self.wait_until(lambda: frame in self.frames, f"a frame of {len(frame)} bytes", timeout_s)

    def wait_link(self, report: LinkReport, count: int = 1, timeout_s: float = WAIT_S) -> None:
        """Block until the report has been made ``count`` times.  A Disconnected matches with any reason."""
        self.wait_until(lambda: self.count_links(report) >= count, f"{report} (time {count})", timeout_s)

    def wait_connected(self, address: str, count: int = 1, timeout_s: float = WAIT_S) -> None:
        """Block until the link to ``address`` has come up ``count`` times."""
        self.wait_link(Connected(address), count, timeout_s)

    def count_links(self, report: LinkReport) -> int:
        """How often the report was made.  A Disconnected matches with any reason."""
        return sum(_without_reason(link) == _without_reason(report) for link in tuple(self.links))


def _without_reason(report: LinkReport) -> tuple[object, ...]:
    return (type(report), report.address, getattr(report, "topic_filter", None))
