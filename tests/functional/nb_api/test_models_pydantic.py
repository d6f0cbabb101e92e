"""Tables whose class is a pydantic model: written, read, told, merged and refused as those of other classes."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from nb_api import Controller, Created, Deleted, LocalCache, NbApi, Updated, aio
from nb_api.errors import ValueMismatch
from nb_api.models import Mismatched, stored_in
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.waiting import WAIT_S

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

TOPIC = "tenant-7"
NAIVE = datetime.datetime(2026, 1, 2, 3, 4, 5)
Base: Any = pydantic.BaseModel


class Color(enum.Enum):
    RED = "red"


class Address(Base):
    ip: str
    prefix: Annotated[int, pydantic.Field(ge=0, le=32)] = 32


@stored_in("port")
class Port(Base):
    network: str
    up: bool = False
    addresses: list[Address] = []


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def cache(nb: NbApi) -> Iterator[LocalCache]:
    with LocalCache(nb, tables=["port"]) as opened:
        opened.wait_synced(timeout_s=WAIT_S)
        yield opened


def test_every_way_of_writing_and_reading(nb: NbApi, cache: LocalCache) -> None:
    ports, copy = nb.table(Port), cache.table(Port)
    told = copy.subscribe()
    ports.create("p1", Port(network="n1", addresses=[Address(ip="10.0.0.1")]), topic=TOPIC)
    ports.update("p1", lambda port: port.model_copy(update={"up": True}))
    with nb.transaction() as txn:
        txn.table(Port).update("p1", lambda port: port.model_copy(update={"network": "n2"}))
        txn.table(Port).put("p2", Port(network="n2"), topic=TOPIC)
    wanted = Port(network="n2", up=True, addresses=[Address(ip="10.0.0.1")])
    assert ports.get("p1").value == wanted
    found = copy.wait_version("p1", txn.versions[0], timeout_s=WAIT_S)
    assert found is not None
    assert found.value == wanted
    assert nb.get("port", "p1").value["addresses"] == [{"ip": "10.0.0.1", "prefix": 32}]
    by_network = copy.index("by_network", lambda port: port.value.network)
    copy.wait_version("p2", txn.versions[1], timeout_s=WAIT_S)
    assert [one.key for one in by_network.get("n2")] == ["p1", "p2"]
    ports.delete("p1")
    changes = []
    for change in told.changes(timeout_s=WAIT_S):
        if isinstance(change, Created | Updated | Deleted):
            changes.append((change.key, change.object.value))
        if isinstance(change, Deleted):
            break
    assert changes[0] == ("p1", Port(network="n1", addresses=[Address(ip="10.0.0.1")]))
    assert changes[-1] == ("p1", wanted)


def test_a_controller_and_coroutines(nb: NbApi, cache: LocalCache) -> None:
    seen: dict[str, Any] = {}

    def reconcile(request: Any) -> None:
        seen[request.key] = request.object and request.object.value

    version = nb.table(Port).create("p1", Port(network="n1"), topic=TOPIC)
    cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
    with Controller(cache.table(Port), reconcile) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
    assert seen == {"p1": Port(network="n1")}

    async def work() -> None:
        copy = aio.LocalCache.over(cache)
        assert copy.table(Port).get("p1").value == Port(network="n1")

    asyncio.run(work())


def test_what_does_not_fit_names_the_field_as_pydantic_does(nb: NbApi, cache: LocalCache) -> None:
    version = nb.create("port", "p1", {"network": "n1", "addresses": [{"ip": "10.0.0.1", "prefix": 33}]}, topic=TOPIC)
    with pytest.raises(ValueMismatch, match="less than or equal to 32") as refused:
        cache.table(Port).wait_version("p1", version, timeout_s=WAIT_S)
    assert refused.value.field == "addresses[0].prefix"
    changes = cache.table(Port).subscribe().changes(timeout_s=WAIT_S)
    assert any(isinstance(change, Mismatched) for change in changes if change is not None)
    ports = nb.table(Port)
    broken = Port(network="n1")
    broken.network = 7  # pydantic does not look at assignments
    with pytest.raises(ValueMismatch, match="valid string") as refused:
        ports.create("p2", broken, topic=TOPIC)
    assert refused.value.field == "network"
    with pytest.raises(ValueMismatch, match="Field required"):
        nb.create("port", "p3", {}, topic=TOPIC)
    ports.put("p1", Port(network="n1"), topic=TOPIC)
    assert ports.mismatches() == []


def test_fields_that_the_class_does_not_know_stay(nb: NbApi) -> None:
    nb.create("port", "p1", {"network": "n1", "mac": "x", "addresses": [{"ip": "::1", "zone": 2}]}, topic=TOPIC)
    nb.table(Port).update("p1", lambda port: port.model_copy(update={"up": True}))
    stored = nb.get("port", "p1").value
    assert (stored["mac"], stored["up"], stored["addresses"]) == ("x", True, [{"ip": "::1", "zone": 2}])


def test_aliases_are_the_names_that_are_stored(nb: NbApi) -> None:
    @stored_in("port")
    class Aliased(Base):
        network: str = pydantic.Field(alias="networkName")

    nb.table(Aliased).create("p1", Aliased(networkName="n1"), topic=TOPIC)
    assert nb.get("port", "p1").value == {"networkName": "n1"}
    assert nb.table(Aliased).get("p1").value.network == "n1"


def test_types_that_msgpack_does_not_have(nb: NbApi) -> None:
    def text(value: object) -> str:
        return str(value)

    @stored_in("port")
    class Rich(Base):
        raw: bytes = b"\xff"
        when: datetime.datetime = NAIVE.replace(tzinfo=datetime.timezone.utc)
        local: datetime.datetime = NAIVE
        number: uuid.UUID = uuid.UUID(int=5)
        price: decimal.Decimal = decimal.Decimal("1.50")
        color: Color = Color.RED
        numbers: set[int] = {8, 0}
        address: Annotated[ipaddress.IPv4Address, pydantic.PlainSerializer(text)] = ipaddress.IPv4Address("10.0.0.1")

    version = nb.table(Rich).create("p1", Rich(), topic=TOPIC)
    assert nb.table(Rich).get("p1").value == Rich()
    assert nb.table(Rich).put("p1", Rich(), topic=TOPIC) == version  # nothing is changed, so nothing is written

    @stored_in("net")
    class Unsaid(Base):
        address: ipaddress.IPv4Address

    with pytest.raises(ValueMismatch, match="IPv4Address is unsupported"):
        nb.table(Unsaid).create("n1", Unsaid(address="10.0.0.1"), topic=TOPIC)
