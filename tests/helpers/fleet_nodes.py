"""Controllers that tell the fleet how they are, in processes of their own, for tests that stop them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from nb_api import LocalCache, NbApi, fleet
from nb_api.fleet import reporter
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nb_tools import open_nb, sqlite_url

INTERVAL_S = 0.5
RIGHT: dict[str, Any] = {"hmac_key": "the right key, long enough to be one", "pub_sub_use_multiproc": False}
WRONG: dict[str, Any] = {**RIGHT, "hmac_key": "a wrong key, but just as long as it"}
PER_PROCESS = 12
UNWELL = {"frozen-0": "silent", "old-0": "old", "deaf-0": "deaf"}
"""Of many controllers: member -> the state that must be seen."""


class FleetNode(ChildProcess):
    """``count`` controllers in one process, named ``prefix`` and a number.  ``release`` None: of this checkout."""

    def __init__(self, url: str, bus: str, prefix: str, count: int = 1, *, release: str | None = None, **pubsub: Any):
        arguments = {"bus": bus, "prefix": prefix, "count": count, "release": release, "pubsub": pubsub}
        super().__init__("controllers", url, json.dumps(arguments), module="tests.helpers.fleet_nodes")

    def wait_ready(self) -> FleetNode:
        assert self.receive()["ready"]
        return self


@contextlib.contextmanager
def written(nb: NbApi) -> Iterator[None]:
    """Changes all the time, which those who hear hear."""
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.wait(0.05):
            number += 1
            nb.put("port", "p1", number, topic="tenant-1/a")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def many_controllers(directory: pathlib.Path, count: int) -> Iterator[str]:
    """Of which one is frozen, one is old, and one is deaf; the URL of their database."""
    url, bus = sqlite_url(directory), f"zmq://{directory}/bus"
    with contextlib.ExitStack() as stack:
        nb = stack.enter_context(open_nb(url, bus, **RIGHT))
        nb.create("port", "p1", 0, topic="tenant-1/a")
        rest = count - len(UNWELL)
        sizes = [min(PER_PROCESS, rest - first) for first in range(0, rest, PER_PROCESS)]
        nodes = [FleetNode(url, bus, f"crowd-{n}-", size, **RIGHT) for n, size in enumerate(sizes)]
        frozen = FleetNode(url, bus, "frozen-", **RIGHT)
        nodes += [frozen, FleetNode(url, bus, "old-", release="0.0.9", **RIGHT), FleetNode(url, bus, "deaf-", **WRONG)]
        for node in nodes:
            stack.enter_context(node)
        stack.enter_context(written(nb))
        for node in nodes:
            node.wait_ready()
        frozen.stop()
        yield url


def _controllers(url: str, bus: str, prefix: str, count: int, release: str | None, pubsub: dict[str, Any]) -> None:
    if release is not None:
        reporter.release = lambda: release
    with contextlib.ExitStack() as stack:
        nb = stack.enter_context(open_nb(url, bus, **pubsub))
        for number in range(count):
            cache = stack.enter_context(LocalCache(nb, tables=["port"], topics=["tenant-1/#"]))
            cache.wait_synced(timeout_s=60)
            told = fleet.report(nb, cache, name=f"{prefix}{number}", role="controller", interval_s=INTERVAL_S)
            stack.enter_context(contextlib.closing(told))
            assert told.wait_done(timeout_s=60)
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _, node_url, given = sys.argv[1:]
    _controllers(node_url, **json.loads(given))
