"""How long an event takes from its publisher, over the bus and the log, to a callback of a member of a group.

Two members run in processes of their own.  One of them leads and records; each gets events of its own shards.  Events
are published one by one with pauses, each with the time as its version.
"""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection

import pubsub_api
from bench import events
from bench.consumers import GROUP
from bench.workers import Worker, WorkerFailed

TOPICS = 32
_INTERVAL_S = 0.01
_TIMEOUT_S = 60.0


def member(pipe: Connection, bus: str, url: str) -> None:
    """Tells, when asked, of which events it got, by version, how many nanoseconds they took."""
    from durable_log import config as log_config
    from pubsub_api import loading
    from shared_subscriptions import config

    conf = config.register(loading.conf_from_url(bus))
    conf.register_opts(log_config.OPTIONS, group=log_config.GROUP)
    conf.set_override("url", url, group=log_config.GROUP)
    took: dict[int, int] = {}

    def on_event(event: pubsub_api.Event) -> None:
        took[event.version] = time.monotonic_ns() - event.version

    with pubsub_api.open(conf=conf) as session, session.subscriber([f"$shared/{GROUP}/#"], on_event):
        while pipe.recv() != "stop":
            pipe.send(dict(took))


def measure(bus: str, url: str, count: int) -> list[int]:
    """Nanoseconds of so many events.  Raises WorkerFailed."""
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(pubsub_api.open(bus)).publisher()
        workers = [stack.enter_context(Worker(member, bus, url)) for _ in range(2)]
        deadline = time.monotonic() + _TIMEOUT_S
        while not all(worker.ask("news?") for worker in workers):
            _publish(publisher, TOPICS)
            _check(deadline, "both members to have a share")
        started_ns = time.monotonic_ns()
        _publish(publisher, count)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            found = [
                took for worker in workers for version, took in worker.ask("news?").items() if version >= started_ns
            ]
            if len(found) == count:
                break
            _check(deadline, f"{count} events, of which {len(found)} came")
        for worker in workers:
            worker.tell("stop")
            worker.end()
    return found


def _publish(publisher: pubsub_api.Publisher, count: int) -> None:
    for number in range(count):
        publisher.send_event(events.event(time.monotonic_ns(), events.topic(number % TOPICS)))
        time.sleep(_INTERVAL_S)


def _check(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise WorkerFailed(f"waited {_TIMEOUT_S} s for {what}")
    time.sleep(_INTERVAL_S)
