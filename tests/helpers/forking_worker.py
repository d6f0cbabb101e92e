"""Worker processes that fork while they publish, in every way that real programs do.

``python -m tests.helpers.forking_worker ROLE CONFIG_FILE COUNT`` plays a role and prints one JSON line: what was sent,
as
``{topic: [numbers]}``, how children ended, and how long the slowest took.  Numbers are unique over all processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any

from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api.config import new_conf
from tests.helpers.service_nodes import Flood, event

CHILD_EVENTS = 3
AT_ONCE = 4
HANG_S = 120.0
"""A child that lives this long hangs, on any machine."""
FLOOD_RATE = 500.0


def child_topic(number: int) -> str:
    return f"child/{number % 20}"


def child_numbers(number: int) -> list[int]:
    return [1_000_000 + number * CHILD_EVENTS + position for position in range(CHILD_EVENTS)]


def publish_as_child(publisher: WorkerPublisher, number: int) -> None:
    for version in child_numbers(number):
        publisher.send_event(event(child_topic(number), version))
    publisher.flush(timeout_s=HANG_S)


class Children:
    """Forked children under way, a few at a time."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self.codes: list[int] = []
        self.slowest_s = 0.0

    def add(self, pid: int) -> None:
        self._started[pid] = time.monotonic()
        while len(self._started) >= AT_ONCE:
            self.reap()

    def reap(self) -> None:
        """Wait for a child; kill it when it hangs."""
        timer = threading.Timer(HANG_S, self._kill_all)
        timer.start()
        pid, status = os.wait()
        timer.cancel()
        self.slowest_s = max(self.slowest_s, time.monotonic() - self._started.pop(pid))
        self.codes.append(os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for pid in list(self._started):
            os.kill(pid, signal.SIGKILL)

    def finish(self) -> None:
        while self._started:
            self.reap()


def fork_while_publishing(publisher: WorkerPublisher, count: int) -> dict[str, Any]:
    """``os.fork()`` again and again while two threads of the parent publish, and grandchildren now and then."""
    floods = {topic: Flood(publisher, topic, FLOOD_RATE) for topic in ("parent/0", "parent/1")}
    children = Children()
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if number % 10 == 0:
                    publish_through_grandchild(publisher, number)
                publish_as_child(publisher, number)
                code = 0
            finally:
                os._exit(code)
        children.add(pid)
    children.finish()
    sent = {topic: list(range(1, flood.stop() + 1)) for topic, flood in floods.items()}
    publisher.flush(timeout_s=HANG_S)
    return {"sent": sent | by_topic(count), "codes": children.codes, "slowest_s": children.slowest_s}


def publish_through_grandchild(publisher: WorkerPublisher, number: int) -> None:
    """A child that has published itself forks in turn; the grandchild says the same, under numbers of its own."""
    publisher.send_event(event("grandparent", number + 1))
    pid = os.fork()
    if pid == 0:
        publisher.send_event(event("grandchild", number + 1))
        publisher.flush(timeout_s=HANG_S)
        os._exit(0)
    publisher.flush(timeout_s=HANG_S)
    assert os.waitpid(pid, 0)[1] == 0


def by_topic(count: int) -> dict[str, list[int]]:
    sent: dict[str, list[int]] = {}
    for number in range(count):
        sent.setdefault(child_topic(number), []).extend(child_numbers(number))
        if number % 10 == 0:
            sent.setdefault("grandparent", []).append(number + 1)
            sent.setdefault("grandchild", []).append(number + 1)
    return sent


def _process_main(config_file: str, number: int) -> None:
    """What a process of `multiprocessing` runs: under ``spawn`` everything is made anew."""
    publisher = _shared if _shared is not None else WorkerPublisher(new_conf([config_file]))
    publish_as_child(publisher, number)


_shared: WorkerPublisher | None = None
"""Inherited through ``fork``; under ``spawn`` it is None."""


def use_multiprocessing(method: str, publisher: WorkerPublisher, config_file: str, count: int) -> dict[str, Any]:
    global _shared  # noqa: PLW0603  that is how programs inherit what they share through fork()
    _shared = publisher
    flood = Flood(publisher, "parent/0", FLOOD_RATE)
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=_process_main, args=(config_file, number)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
    sent: dict[str, list[int]] = {"parent/0": list(range(1, flood.stop() + 1))}
    for number in range(count):
        sent.setdefault(child_topic(number), []).extend(child_numbers(number))
    publisher.flush(timeout_s=HANG_S)
    return {"sent": sent, "codes": [process.exitcode for process in processes], "slowest_s": 0.0}


def main(role: str, config_file: str, count: int) -> None:
    with WorkerPublisher(new_conf([config_file])) as publisher:
        if role == "fork":
            outcome = fork_while_publishing(publisher, count)
        else:
            outcome = use_multiprocessing(role.partition("-")[2], publisher, config_file, count)
    print(json.dumps(outcome))  # noqa: T201  the answer to the test


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
