"""Controllers that tell the fleet how they are, in processes of their own, for tests that stop them."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from nb_api import LocalCache, fleet
from nb_api.fleet import reporter
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nb_tools import open_nb

INTERVAL_S = 0.5


class FleetNode(ChildProcess):
    """``count`` controllers in one process, named ``prefix`` and a number.  ``release`` None: of this checkout."""

    def __init__(self, url: str, bus: str, prefix: str, count: int = 1, *, release: str | None = None, **pubsub: Any):
        arguments = {"bus": bus, "prefix": prefix, "count": count, "release": release, "pubsub": pubsub}
        super().__init__("controllers", url, json.dumps(arguments), module="tests.helpers.fleet_nodes")

    def wait_ready(self) -> FleetNode:
        assert self.receive()["ready"]
        return self


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
