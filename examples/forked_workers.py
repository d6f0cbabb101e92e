"""Four forked workers publish through one service; a subscriber gets the events of all of them.  ``... [URL]``.

The service is a thread here so that one command shows everything; usually it is ``heliograph publisher-service``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading

import pubsub_api
from publisher_service.service import PublisherService
from pubsub_api import Event, loading
from pubsub_api.publishing import multiproc

WORKERS, CHANGES = 4, 25
TIMEOUT_S = 30.0


def work(publisher: multiproc.WorkerPublisherApi, topic: str) -> None:
    """A worker's life.  The publisher was made by the parent; this process gets a connection of its own."""
    for version in range(1, CHANGES + 1):
        publisher.send_event(Event(topic=topic, table="port", key="p1", action="set", version=version))
    publisher.flush(timeout_s=TIMEOUT_S)


def main(url: str) -> None:
    newest: dict[str, int] = {}
    has_all = threading.Event()

    def on_event(event: Event) -> None:
        newest[event.topic] = event.version
        if sum(newest.values()) == WORKERS * CHANGES:
            has_all.set()

    with tempfile.TemporaryDirectory() as directory:
        conf = loading.conf_from_url(f"{url}?publisher_multiproc_socket={directory}/workers")
        publisher = multiproc.worker_publisher(conf)
        for number in range(WORKERS):  # The service is not there yet: what they send waits for it.
            if os.fork() == 0:
                work(publisher, f"tenant-{number}")
                os._exit(0)
        with (
            PublisherService(conf),
            pubsub_api.open(conf=conf) as session,
            session.subscriber(["#"], on_event, past="all"),
        ):
            if not has_all.wait(TIMEOUT_S):
                raise SystemExit("not all events came in time")
        print(f"{sum(newest.values())} events of {len(newest)} workers")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
