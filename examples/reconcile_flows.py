"""Programs "flows" from three tables: ports, their networks, and the hosts they are bound to.  ``... [URL]``.

The function looks at one port, whatever has changed.  Again after a failure: the switch refuses every third call.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import time

from nb_api import Controller, LocalCache, NbApi, Request, RetryPauses

logging.getLogger("nb_api").setLevel(logging.CRITICAL)  # Failures are wanted here.
flows: dict[str, str] = {}
calls = itertools.count(1)


def program(port: str, flow: str | None) -> None:
    if next(calls) % 3 == 0:
        raise ConnectionError("the switch is busy")
    flows.pop(port, None)
    flows.update({port: flow} if flow else {})


def reconcile(request: Request) -> None:
    port, cache = request.object, request.cache
    nets = {net.key: net.value for net in cache.get_all("net")}
    hosts = {binding.key: binding.value for binding in cache.get_all("binding")}
    is_wanted = port is not None and port.value in nets and port.key in hosts
    program(request.key, f"vlan {nets[port.value]} to {hosts[port.key]}" if port and is_wanted else None)


def main(bus: str) -> None:
    with tempfile.TemporaryDirectory() as directory, NbApi.open(f"sqlite://{directory}/objects.db", bus=bus) as nb:
        nb.create("net", "blue", 7, topic="tenant-7")
        for number in range(4):
            nb.create("port", f"p{number}", "blue", topic="tenant-7")
            nb.create("binding", f"p{number}", f"host-{number}", topic="tenant-7")
        cache = LocalCache(nb, tables=["net", "port", "binding"])
        owners = {
            "net": lambda net: [("port", port.key) for port in cache.get_all("port") if port.value == net.key],
            "binding": lambda binding: [("port", binding.key)],
        }
        with cache, Controller(cache, reconcile, owners=owners, retries=RetryPauses(0.01, 1.0)) as controller:
            controller.wait_idle(timeout_s=60)
            nb.update("net", "blue", 8)
            nb.update("binding", "p1", "host-7")
            nb.delete("binding", "p2")
            nb.delete("port", "p3")
            while flows != {"p0": "vlan 8 to host-0", "p1": "vlan 8 to host-7"}:
                time.sleep(0.05)
            print(f"{len(flows)} flows as wanted: {flows}; {controller.statistics()}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
