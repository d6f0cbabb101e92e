"""A small program of a user: type checkers look at it with the wheel, and it runs with the wheel.

`test_wheel` knows which types are to be revealed, in this order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING

import pubsub_api
from nb_api import Controller, Created, Deleted, LocalCache, NbApi, Request, Updated, aio
from nb_api.models import Mismatched, Model, stored_in


class Port(Model, table="port", kw_only=True):
    network: str
    up: bool = False


@stored_in("net")
@dataclasses.dataclass
class Net:
    mtu: int


def reconcile(request: Request[Port]) -> None:
    if request.object is not None:
        print("reconciled", request.key, request.object.value.network)


async def reconcile_later(request: aio.Request[Port]) -> None:
    if request.object is not None:
        print("reconciled", request.key, request.object.value.network)


async def work_later(url: str) -> None:
    async with aio.NbApi.open(url) as nb, aio.LocalCache(nb, tables=["port", "net"]) as cache:
        ports, copy = nb.table(Port), cache.table(Port)
        version = await ports.put("p2", Port(network="n2"), topic="tenant-7")
        await ports.update("p2", lambda port: dataclasses.replace(port, up=True))
        async with nb.transaction() as txn:
            await txn.table(Net).put("n2", Net(9000), topic="tenant-7")
        await copy.wait_version("p2", version, timeout_s=60)
        async with await copy.subscribe() as subscription:
            async for change in subscription.changes(timeout_s=60):
                if TYPE_CHECKING:
                    reveal_type(change)
                break
        if TYPE_CHECKING:
            reveal_type((await ports.get("p2")).value)
            reveal_type(await ports.get_all())
            reveal_type(copy.get("p2").value.network)
            reveal_type(await copy.wait_version("p2", version, timeout_s=60))
            reveal_type((await copy.index("by_network", lambda port: port.value.network)).get("n2"))
            aio.Controller(copy, reconcile_later)
            await ports.create("p2", Net(1500), topic="tenant-7")  # wrong: the class of another table
            aio.Controller(cache.table(Net), reconcile_later)  # wrong: a function for another class
            await txn.table(Net).put("n2", Port(network="n2"), topic="t")  # wrong: the class of another table


def main(url: str) -> None:
    with NbApi.open(url) as nb, LocalCache(nb, tables=["port", "net"]) as cache:
        ports = nb.table(Port)
        version = ports.create("p1", Port(network="n1"), topic="tenant-7")
        ports.update("p1", lambda port: dataclasses.replace(port, up=True))
        with nb.transaction() as txn:
            txn.table(Net).put("n1", Net(1500), topic="tenant-7")
        copy = cache.table(Port)
        copy.wait_version("p1", version, timeout_s=60)
        by_network = copy.index("by_network", lambda port: port.value.network, unique=True)
        with Controller(copy, reconcile) as controller:
            controller.wait_idle(timeout_s=60)
        for change in copy.subscribe().changes(timeout_s=60):
            if TYPE_CHECKING:
                reveal_type(change)
            if isinstance(change, Mismatched):
                print(change.error.field)
            elif isinstance(change, Created | Updated | Deleted):
                break
        if TYPE_CHECKING:
            reveal_type(Port(network="n1").up)
            reveal_type(ports.get("p1").value)
            reveal_type(ports.get_all())
            reveal_type(copy.get("p1").value.network)
            reveal_type(copy.wait_version("p1", version, timeout_s=60))
            reveal_type(by_network.one("n1"))
            reveal_type(nb.get("port", "p1").value)
            reveal_type(cache.get("port", "p1"))
            reveal_type(pubsub_api.open("memory://bus"))
            aio.Controller(copy, reconcile_later)
            ports.create("p1", Net(1500), topic="tenant-7")  # wrong: the class of another table
            Controller(cache.table(Net), reconcile)  # wrong: a function for another class
            Port(network=7)  # wrong: the type of a field
            assert copy.get("p1").value.mtu  # wrong: no such field
    print("done")


if __name__ == "__main__":
    asyncio.run(work_later(sys.argv[1]))
    main(sys.argv[1])
