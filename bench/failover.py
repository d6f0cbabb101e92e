"""How long a group stands still when a member, or its leader, is killed.

Members run in processes of their own.  Events go on being appended, each with the time in its value, and every member
writes down when it gets one.  A process is killed with SIGKILL; the time that counts is until an event of each of its
streams has reached another member.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import durable_log
from bench import events
from bench.consumers import GROUP
from bench.workers import Worker, WorkerFailed

OPTIONS = {"member_lease": 2.0}
TOPICS = 32
_INTERVAL_S = 0.02
_SETTLE_TIMEOUT_S = 60.0


def member(pipe: Connection, url: str) -> None:
    """Tells, when asked, which topics it has heard of since it was asked last, and whether it leads."""
    from pubsub_api.config import new_conf
    from shared_subscriptions import GroupSubscriber, config

    conf = config.register(new_conf())
    for name, value in OPTIONS.items():
        conf.set_override(name, value, group=config.GROUP)
    heard: dict[str, int] = {}

    def on_events(batch: Sequence[Any]) -> None:
        for event in batch:
            heard[event.topic] = event.version

    with GroupSubscriber(durable_log.open(url, conf=conf), conf, [f"$shared/{GROUP}/#"], on_events=on_events) as made:
        made.wait_ready(timeout_s=60)
        pipe.send(os.getpid())
        while pipe.recv() != "stop":
            pipe.send((dict(heard), bool(made.statistics().is_leading)))


class Pulse:
    """Appends one event to every topic again and again; its version is the time."""

    def __init__(self, log: durable_log.LogApi) -> None:
        self._log = log
        self._guid = os.urandom(16)
        self._number = 0

    def beat(self) -> None:
        self._number += 1
        now = time.monotonic_ns()
        topics = [events.topic(number) for number in range(TOPICS)]
        self._log.append(
            [events.frame(self._guid, topic, [events.event(now, topic)], self._number) for topic in topics]
        )


def stalled_s(url: str, *, kills_leader: bool) -> float:
    """Seconds from the kill until events that were appended after it have come from every topic."""
    with contextlib.closing(durable_log.open(url)) as log, contextlib.ExitStack() as stack:
        pulse = Pulse(log)
        pulse.beat()
        workers: list[Worker] = []
        pids: list[int] = []
        for _ in range(3):
            workers.append(stack.enter_context(Worker(member, url)))
            pids.append(workers[-1].hear())
        _wait(pulse, workers, after_ns=time.monotonic_ns())
        leading = [worker.ask("news?")[1] for worker in workers]
        doomed = leading.index(True) if kills_leader else leading.index(False)
        os.kill(pids[doomed], signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        others = [worker for place, worker in enumerate(workers) if place != doomed]
        return (_wait(pulse, others, after_ns=killed_ns) - killed_ns) / 1e9


def _wait(pulse: Pulse, workers: Sequence[Worker], *, after_ns: int) -> int:
    """Go on publishing until these workers have heard, of every topic, something that was appended after a time."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        pulse.beat()
        time.sleep(_INTERVAL_S)
        newest: dict[str, int] = {}
        for worker in workers:
            for topic, version in worker.ask("news?")[0].items():
                newest[topic] = max(version, newest.get(topic, 0))
        if len(newest) == TOPICS and min(newest.values()) > after_ns:
            return time.monotonic_ns()
    raise WorkerFailed(f"the group stood still for {_SETTLE_TIMEOUT_S} s")
