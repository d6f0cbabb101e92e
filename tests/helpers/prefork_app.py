"""A WSGI application that publishes one event per request, for a pre-fork server that loads it before it forks.

The publisher is made, and used, in the master: workers inherit it through ``fork()`` as most programs would have it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api.config import new_conf
from tests.helpers.service_nodes import event

publisher = WorkerPublisher(new_conf([os.environ["HELIOGRAPH_TEST_CONFIG"]]))
publisher.send_event(event("master", 1))


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    number = int(environ["PATH_INFO"].strip("/"))
    publisher.send_event(event("request", number))
    if number % 2:  # the others rely on the process staying alive, as most programs do
        publisher.flush(timeout_s=60)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
