"""Tables as instances of their classes, for coroutines."""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nb_api.aio import Controller, Created, Deleted, LocalCache, NbApi, Request, Updated
from nb_api.errors import ObjectNotFound, ValueMismatch, VersionConflict
from nb_api.models import Mismatched, Model
from pubsub_api.errors import UsageError
from tests.helpers.nb_tools import nb_conf, sqlite_url
from tests.helpers.waiting import WAIT_S

TOPIC = "tenant-7"


class Port(Model, table="port"):
    network: str
    up: bool = False


class Net(Model, table="net"):
    mtu: int


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * WAIT_S))


@asynccontextmanager
async def opened(directory: pathlib.Path) -> AsyncIterator[tuple[NbApi, LocalCache]]:
    async with (
        NbApi.open(conf=nb_conf(), url=sqlite_url(directory)) as nb,
        LocalCache(nb, tables=["port", "net"]) as cache,
    ):
        yield nb, cache


def test_a_table_is_written_and_read_as_instances(tmp_path: pathlib.Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (nb, cache):
            ports, copy = nb.table(Port), cache.table(Port)
            assert (ports.name, copy.name, ports.blocking.name, copy.blocking.name) == ("port",) * 4
            await ports.create("p1", Port("n1"), topic=TOPIC)
            await ports.update("p1", lambda port: dataclasses.replace(port, up=True))
            version = await ports.put("p2", Port("n2"), topic=TOPIC)
            assert (await ports.get("p1")).value == Port("n1", up=True)
            found = await copy.wait_version("p2", version, timeout_s=WAIT_S)
            assert found is not None
            assert found.value == Port("n2")
            assert copy.get("p1").value == Port("n1", up=True)
            assert [one.value for one in copy.get_all()] == [one.value for one in await ports.get_all()]
            index = await copy.index("by_network", lambda port: port.value.network)
            assert [one.value for one in index.get("n1")] == [Port("n1", up=True)]
            gone = await ports.delete("p2")
            assert await copy.wait_version("p2", gone, timeout_s=WAIT_S) is None
            with pytest.raises(ObjectNotFound):
                await ports.get("p2")
            for one in (ports, copy):
                assert repr(one).startswith("<Async")
                assert "'port' of Port" in repr(one)

    run(work())


def test_what_does_not_fit_is_refused_or_told(tmp_path: pathlib.Path) -> None:
    wrong: Any = Port(7)  # type: ignore[arg-type]

    async def changed(_port: Port) -> Port:
        raise AssertionError("never called")

    async def work() -> None:
        async with opened(tmp_path) as (nb, cache):
            version = await nb.put("port", "p1", {"network": 7}, topic=TOPIC)
            ports, copy = nb.table(Port), cache.table(Port)
            coroutine_function: Any = changed
            with pytest.raises(ValueMismatch):
                await ports.create("p2", wrong, topic=TOPIC)
            with pytest.raises(UsageError, match="a plain one"):
                await ports.update("p1", coroutine_function)
            with pytest.raises(ValueMismatch):
                await copy.wait_version("p1", version, timeout_s=WAIT_S)
            assert [error.key for error in await ports.mismatches()] == ["p1"]
            assert [error.key for error in copy.mismatches()] == ["p1"]
            async with await copy.subscribe() as subscription:
                assert "port" in repr(subscription)
                told = [change async for change in _first(subscription.changes(timeout_s=WAIT_S), 1)]
            assert [type(change) for change in told] == [Mismatched]
            with pytest.raises(UsageError, match="is not followed"):
                cache.table(_unfollowed())

    run(work())


def _unfollowed() -> type[Model]:
    class Other(Model, table="other"):
        name: str

    return Other


async def _first(changes: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    async for change in changes:
        if isinstance(change, Created | Updated | Deleted | Mismatched):
            yield change
            count -= 1
        if not count:
            return


def test_changes_have_instances(tmp_path: pathlib.Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (nb, cache):
            await cache.wait_synced(timeout_s=WAIT_S)
            async with await cache.table(Port).subscribe() as subscription:
                ports = nb.table(Port)
                await nb.table(Net).create("n1", Net(1500), topic=TOPIC)
                await ports.create("p1", Port("n1"), topic=TOPIC)
                await ports.update("p1", Port("n2"))
                await ports.delete("p1")
                told = [change async for change in _first(subscription.changes(timeout_s=WAIT_S), 3)]
            created, updated, deleted = told
            assert (created.object.value, updated.object.value) == (Port("n1"), Port("n2"))
            assert (updated.before.value, deleted.object.value) == (Port("n1"), Port("n2"))

    run(work())


def test_a_transaction_writes_instances(tmp_path: pathlib.Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (nb, _):
            await nb.put("port", "p1", {"network": "n1", "mac": "of a newer program"}, topic=TOPIC)
            async with nb.transaction() as txn:
                ports = txn.table(Port)
                assert repr(ports) == "<AsyncTransactionTable 'port'>"
                await ports.update("p1", lambda port: dataclasses.replace(port, up=True))
                await ports.put("p2", Port("n2"), topic=TOPIC)
                txn.table(Net).create("n1", Net(1500), topic=TOPIC)
            assert len(txn.versions) == 3
            assert (await nb.get("port", "p1")).value == {"network": "n1", "mac": "of a newer program", "up": True}
            async with nb.transaction() as txn:
                await txn.table(Port).put("p2", Port("n3"), topic=TOPIC)
                txn.table(Net).delete("n1")
            assert (await nb.table(Port).get("p2")).value == Port("n3")
            assert await nb.get_all("net") == []
            txn = nb.transaction()
            await txn.__aenter__()
            await txn.table(Port).update("p2", Port("n4"))
            await nb.table(Port).update("p2", Port("n5"))
            with pytest.raises(VersionConflict):
                await txn.__aexit__(None, None, None)

    run(work())


def test_a_cancelled_read_adds_nothing_to_the_transaction(tmp_path: pathlib.Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (nb, _):
            await nb.table(Port).create("p1", Port("n1"), topic=TOPIC)
            async with nb.transaction() as txn:
                update = asyncio.create_task(txn.table(Port).update("p1", Port("n2")))
                await asyncio.sleep(0)
                update.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await update
                await txn.table(Port).put("p2", Port("n2"), topic=TOPIC)
            assert len(txn.versions) == 1
            assert (await nb.table(Port).get("p1")).value == Port("n1")

    run(work())


def test_a_controller_works_on_instances(tmp_path: pathlib.Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (nb, cache):
            seen: list[Port] = []

            async def reconcile(request: Request[Port]) -> None:
                if request.object is not None:
                    seen.append(request.object.value)

            await nb.table(Port).create("p1", Port("n1"), topic=TOPIC)
            await nb.table(Net).create("n1", Net(1500), topic=TOPIC)
            await cache.wait_synced(timeout_s=WAIT_S)
            async with Controller(cache.table(Port), reconcile) as controller:
                await controller.wait_idle(timeout_s=WAIT_S)
            assert seen == [Port("n1")]

    run(work())
