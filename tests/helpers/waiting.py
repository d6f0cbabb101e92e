"""Waiting in tests: on a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pubsub_api import Subscriber

T = TypeVar("T")

POLL_S = 0.005
POLL_MAX_S = 0.02
"""A wait that takes long looks less often: what many tests look at costs more than what they wait for."""
WAIT_S = 60.0
"""How long a wait goes on by default: a bound for a machine on which everything stands still at times."""


def wait_until(condition: Callable[[], T], timeout_s: float = WAIT_S, what: str = "the condition") -> T:
    """Call ``condition`` until it returns something true and return that; fail with ``what`` after ``timeout_s``.

    The condition is called at least once, and once more after the deadline, so that a machine that stood still for the
    whole time does not fail a test whose condition has come true meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = POLL_S
    while True:
        is_last_chance = time.monotonic() >= deadline
        result = condition()
        if result:
            return result
        if is_last_chance:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}; last value: {result!r}")
        time.sleep(pause_s)
        pause_s = min(1.02 * pause_s, POLL_MAX_S)


def wait_joined(subscriber: Subscriber, addresses: Sequence[str] | None) -> None:
    """Wait until a subscriber has all its links, and has heard of a publisher.

    It is ready with one link: what is published before the others are up is covered by their resync, not delivered.
    """
    subscriber.wait_ready(timeout_s=WAIT_S)
    links = len(addresses) if addresses else 1

    def is_joined() -> bool:
        statistics = subscriber.statistics()
        return statistics.links_up == links and statistics.peers.publishers > 0

    wait_until(is_joined, WAIT_S, "all links, and a publisher")
