"""Forked API workers behind the publisher service of their host, and a controller that acts on what they write.

The service is a thread here so that one command shows everything; usually it is ``heliograph publisher-service``.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time

from nb_api import Controller, LocalCache, NbApi, Request
from publisher_service.service import PublisherService
from pubsub_api.config import new_conf

WORKERS, REQUESTS = 4, 25
CONFIGURATION = """
[pubsub]
enable_df_pub_sub = true
publisher_port = 0
publisher_multiproc_socket = {directory}/workers
[db]
url = sqlite://{directory}/objects.db
"""
done: dict[str, int] = {}


def serve(nb: NbApi, worker: int) -> None:
    """A worker's life: for each request an object is written.  After the fork it has connections of its own."""
    for number in range(REQUESTS):
        nb.put("port", f"p{number}-{worker}", {"worker": worker}, topic=f"tenant-{worker}")
    nb.flush(timeout_s=60)  # what was committed goes through the service, which owns the address of the bus


def reconcile(request: Request) -> None:
    if request.object is not None:
        done[request.key] = request.object.value["worker"]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "heliograph.conf")
        file.write_text(CONFIGURATION.format(directory=directory))
        with NbApi.open(config_files=[file]) as nb:
            for worker in range(WORKERS):
                if os.fork() == 0:
                    serve(nb, worker)
                    os._exit(0)
            service, cache = PublisherService(new_conf([file])), LocalCache(nb, tables=["port"])
            with service, cache, Controller(cache, reconcile) as controller:
                while len(done) < WORKERS * REQUESTS:
                    time.sleep(0.05)
                assert [os.wait()[1] for _ in range(WORKERS)] == [0] * WORKERS
                print(f"{len(done)} ports of {WORKERS} workers, {controller.statistics().runs} runs")


if __name__ == "__main__":
    main()
