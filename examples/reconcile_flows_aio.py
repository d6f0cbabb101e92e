"""The same as ``reconcile_flows.py`` on asyncio: flows from three tables, programmed by coroutines.  ``... [URL]``."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from nb_api.aio import Controller, LocalCache, NbApi, Request, RequeueAfter

flows: dict[str, str] = {}


async def reconcile(request: Request) -> RequeueAfter | None:
    port, cache = request.object, request.cache
    nets = {net.key: net.value for net in cache.get_all("net")}
    hosts = {binding.key: binding.value for binding in cache.get_all("binding")}
    await asyncio.sleep(0.01)  # until the switch answers
    if port is None or port.value not in nets or port.key not in hosts:
        flows.pop(request.key, None)
        return None
    flows[request.key] = f"vlan {nets[port.value]} to {hosts[port.key]}"
    return RequeueAfter(3600.0)  # in case the switch forgets


async def follow(nb: NbApi, cache: LocalCache) -> None:
    owners = {
        "net": lambda net: [("port", port.key) for port in cache.get_all("port") if port.value == net.key],
        "binding": lambda binding: [("port", binding.key)],
    }
    async with Controller(cache, reconcile, workers=20, owners=owners, timeout_s=10.0) as controller:
        await controller.wait_idle(timeout_s=60)
        print(f"{len(flows)} flows at first")
        await nb.update("net", "blue", 8)
        await nb.delete("port", "p0")
        while set(flows.values()) != {"vlan 8 to host-0"} or "p0" in flows:
            await asyncio.sleep(0.01)
        print(f"{len(flows)} flows as wanted, {controller.statistics().runs} runs")


async def main(bus: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with NbApi.open(f"sqlite://{directory}/objects.db", bus=bus) as nb:
            await nb.create("net", "blue", 7, topic="tenant-7")
            async with nb.transaction() as txn:
                for number in range(100):
                    txn.create("port", f"p{number}", "blue", topic="tenant-7")
                    txn.create("binding", f"p{number}", "host-0", topic="tenant-7")
            async with LocalCache(nb, tables=["net", "port", "binding"]) as cache:
                await follow(nb, cache)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"])))
