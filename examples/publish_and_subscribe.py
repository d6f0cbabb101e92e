"""Publishes ten changes and prints them as a subscriber sees them.  ``publish_and_subscribe.py [URL]``.

Publisher and subscriber are in one program here so that one command shows both; usually each is a process of its own.
"""

from __future__ import annotations

import sys
import threading

import pubsub_api
from pubsub_api import Event, Resync

CHANGES = 10


def main(url: str) -> None:
    has_all = threading.Event()

    def on_event(event: Event) -> None:
        print(f"{event.topic}: {event.action} {event.table}/{event.key} = {event.value}, version {event.version}")
        if event.version == CHANGES:
            has_all.set()

    def on_resync(resync: Resync) -> None:
        print(f"read {', '.join(resync.topics)} again: {resync.reason.value}")

    with pubsub_api.open(url) as session:
        publisher = session.publisher(name="example")
        with session.subscriber(["tenant-7/#"], on_event, on_resync=on_resync) as subscriber:
            subscriber.wait_ready(timeout_s=60)
            for version in range(1, CHANGES + 1):
                value = {"up": version % 2 == 0}
                publisher.send_event(
                    Event(topic="tenant-7/port", table="port", key="p1", action="set", value=value, version=version)
                )
            if not has_all.wait(timeout=60):
                raise SystemExit("not all events came within 60 s")
            statistics = subscriber.statistics()
            print(f"{statistics.received} events in {statistics.frames} frames, {statistics.repair.gaps} gaps")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
