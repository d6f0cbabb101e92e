"""Tables declared as classes, through the public interface: what is written is checked, what is read is an instance."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nb_api import (
    Controller,
    Created,
    Deleted,
    LocalCache,
    NbApi,
    Request,
    Resynced,
    Updated,
    aio,
)
from nb_api.errors import InvalidObject, ObjectExists, ObjectNotFound, ValueMismatch, VersionConflict
from nb_api.models import Mismatched, Model, stored_in, table_of
from pubsub_api.errors import UsageError
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.waiting import WAIT_S, wait_until

TOPIC = "tenant-7"


class Address(Model):
    ip: str
    prefix: int = 32


class Port(Model, table="port"):
    network: str
    up: bool = False
    addresses: list[Address] = dataclasses.field(default_factory=list)


@stored_in("port")
@dataclasses.dataclass
class DataclassPort:
    network: str
    up: bool = False


@stored_in("port")
class StructPort(msgspec.Struct):
    network: str
    up: bool = False


def pydantic_port() -> Any:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    return stored_in("port")(pydantic.create_model("PydanticPort", network=(str, ...), up=(bool, False)))


KINDS = {
    "model": lambda: Port, "dataclass": lambda: DataclassPort, "struct": lambda: StructPort, "pydantic": pydantic_port,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def port_class(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: pathlib.Path, nb: NbApi) -> Iterator[NbApi]:
    """Another program on the same database, which knows nothing of classes."""
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def cache(nb: NbApi) -> Iterator[LocalCache]:
    with LocalCache(nb, tables=["port"]) as opened:
        opened.wait_synced(timeout_s=WAIT_S)
        yield opened


# -- writing


def test_every_kind_of_class_is_written_and_read(nb: NbApi, cache: LocalCache, port_class: Any) -> None:
    table = nb.table(port_class)
    version = table.create("p1", port_class(network="n1"), topic=TOPIC)
    assert nb.get("port", "p1").value["network"] == "n1"
    found = table.get("p1")
    assert (found.key, found.topic, found.version, found.value) == ("p1", TOPIC, version, port_class(network="n1"))
    assert table.get_all() == [found]
    assert cache.table(port_class).wait_version("p1", version, timeout_s=WAIT_S) == found
    assert cache.table(port_class).get("p1") == found
    assert cache.table(port_class).get_all() == [found]

    def raise_up(port: Any) -> Any:
        port.up = True
        return port

    assert table.update("p1", raise_up) > version
    assert table.get("p1").value == port_class(network="n1", up=True)
    table.put("p1", port_class(network="n2"), topic="tenant-8")
    assert (table.get("p1").value, table.get("p1").topic) == (port_class(network="n2"), "tenant-8")
    table.delete("p1")
    with pytest.raises(ObjectNotFound):
        table.get("p1")
    table.put("p1", port_class(network="n3"), topic=TOPIC)
    assert table.get("p1").value.network == "n3"


def test_what_does_not_fit_is_refused_before_it_is_written(nb: NbApi, port_class: Any) -> None:
    table = nb.table(port_class)
    bad = port_class(network="n1")
    bad.network = 7
    for write in (table.create, table.put):
        with pytest.raises(ValueMismatch, match="port 'p1' does not fit") as refused:
            write("p1", bad, topic=TOPIC)
        assert (refused.value.table, refused.value.key, refused.value.field) == ("port", "p1", "network")
    assert nb.get_all("port") == []
    version = table.create("p1", port_class(network="n1"), topic=TOPIC)
    with pytest.raises(ValueMismatch):
        table.update("p1", bad)
    with pytest.raises(ValueMismatch):
        table.update("p1", lambda _port: bad)
    with pytest.raises(ValueMismatch, match="got NoneType"):
        table.update("p1", lambda _port: None)
    assert table.get("p1").version == version
    assert nb.statistics().mismatches == 5


def test_a_writer_of_plain_values_is_checked_too(nb: NbApi, other: NbApi) -> None:
    nb.create("port", "p0", {"anything": 1}, topic=TOPIC)  # no class is declared yet
    nb.table(Port)
    nb.create("port", "p1", {"network": "n1", "more": [1]}, topic=TOPIC)
    for write in (
        lambda: nb.create("port", "p2", {"network": 7}, topic=TOPIC),
        lambda: nb.put("port", "p2", {}, topic=TOPIC),
        lambda: nb.update("port", "p1", {"network": None}),
        lambda: nb.update("port", "p1", lambda value: {**value, "up": "yes"}),
    ):
        with pytest.raises(ValueMismatch):
            write()
    txn = nb.transaction()
    txn.create("net", "n1", {}, topic=TOPIC)
    txn.create("port", "p3", {"network": "n1", "addresses": [{"ip": 4}]}, topic=TOPIC)
    with pytest.raises(ValueMismatch) as refused, txn:
        pass
    assert refused.value.field == "addresses[0].ip"
    assert isinstance(refused.value, InvalidObject)
    assert [found.key for found in nb.get_all("port")] == ["p0", "p1"]
    assert nb.get_all("net") == []
    nb.create("net", "n1", {"network": 7}, topic=TOPIC)
    other.create("port", "p4", {"network": 7}, topic=TOPIC)  # it has declared nothing


def test_a_typed_transaction(nb: NbApi, other: NbApi) -> None:
    ports = nb.table(Port)
    other.create("port", "p1", {"network": "n1", "newer": 1}, topic=TOPIC)
    other.create("port", "p2", {"network": "n1", "newer": 2}, topic=TOPIC)
    with nb.transaction() as txn:
        typed = txn.table(Port)
        typed.create("p0", Port("n0"), topic=TOPIC)
        typed.update("p1", lambda port: dataclasses.replace(port, up=True))
        typed.put("p2", Port("n2"), topic=TOPIC)
        typed.put("p3", Port("n3"), topic=TOPIC)
    assert [(found.key, found.value.network) for found in ports.get_all()] == [
        ("p0", "n0"), ("p1", "n1"), ("p2", "n2"), ("p3", "n3"),
    ]  # fmt: skip
    assert nb.get("port", "p1").value == {"network": "n1", "up": True, "addresses": [], "newer": 1}
    assert nb.get("port", "p2").value["newer"] == 2
    txn = nb.transaction()
    txn.table(Port).update("p1", Port("n9"))
    txn.table(Port).delete("p0")
    with pytest.raises(VersionConflict), txn:
        other.update("port", "p1", {"network": "n1", "newest": 1})
    assert ports.get("p0").value == Port("n0")
    with pytest.raises(ValueMismatch):
        nb.transaction().table(Port).create("p8", Port(8), topic=TOPIC)  # type: ignore[arg-type]


def test_writers_who_meet_lose_nothing(nb: NbApi, other: NbApi) -> None:
    """One changes a field that the other does not know, between its reading and its writing."""
    ports = nb.table(Port)
    ports.create("p1", Port("n1"), topic=TOPIC)
    calls = []

    def change(port: Port) -> Port:
        if not calls:
            other.update("port", "p1", lambda value: {**value, "newer": 1})
        calls.append(port)
        return dataclasses.replace(port, up=True)

    ports.update("p1", change)
    assert len(calls) == 2
    assert nb.get("port", "p1").value == {"network": "n1", "up": True, "addresses": [], "newer": 1}
    with pytest.raises(VersionConflict):
        ports.update("p1", Port("n2"), expected_version=1)
    with pytest.raises(ObjectExists):
        ports.create("p1", Port("n2"), topic=TOPIC)
    with pytest.raises(ObjectNotFound):
        ports.put("p2", Port("n2"), topic=TOPIC, expected_version=5)


def test_a_write_that_changes_nothing_writes_nothing(nb: NbApi, other: NbApi) -> None:
    ports = nb.table(Port)
    version = ports.put("p1", Port("n1"), topic=TOPIC)
    assert ports.put("p1", Port("n1"), topic=TOPIC) == version
    version = other.update("port", "p1", lambda value: {**value, "newer": 1})
    assert ports.put("p1", Port("n1"), topic=TOPIC) == version
    assert ports.update("p1", lambda port: port) == version


def test_an_object_that_does_not_fit_can_be_repaired(nb: NbApi, other: NbApi) -> None:
    ports = nb.table(Port)
    other.create("port", "p1", {"network": 7, "newer": 1}, topic=TOPIC)
    other.create("port", "p2", "no dict", topic=TOPIC)
    with pytest.raises(ValueMismatch):
        ports.update("p1", lambda port: port)
    ports.update("p1", Port("n1"))
    ports.put("p2", Port("n2"), topic=TOPIC)
    assert nb.get("port", "p1").value["newer"] == 1
    assert [found.value.network for found in ports.get_all()] == ["n1", "n2"]


# -- reading


def test_what_does_not_fit_is_told_once_counted_and_kept(
    nb: NbApi, cache: LocalCache, caplog: pytest.LogCaptureFixture
) -> None:
    good = nb.create("port", "p1", {"network": "n1"}, topic=TOPIC)
    bad = nb.create("port", "p2", {"network": "n1", "addresses": [{"ip": "::1", "prefix": "no"}]}, topic=TOPIC)
    cache.wait_version("port", "p2", bad, timeout_s=WAIT_S)
    ports = cache.table(Port)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(ValueMismatch) as told:
                ports.get("p2")
            assert [found.version for found in ports.get_all()] == [good]
    error = told.value
    assert (error.table, error.key, error.field) == ("port", "p2", "addresses[0].prefix")
    assert error.object == cache.get("port", "p2") == nb.get("port", "p2")
    assert [one.key for one in ports.mismatches()] == ["p2"]
    assert cache.statistics().mismatches == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "port 'p2'" in line
    assert "addresses[0].prefix" in line
    bad = nb.update("port", "p2", {"network": 5})
    with pytest.raises(ValueMismatch):
        ports.wait_version("p2", bad, timeout_s=WAIT_S)
    assert cache.statistics().mismatches == 2
    bad = nb.update("port", "p2", {"network": "n5"})
    ports.wait_version("p2", bad, timeout_s=WAIT_S)
    assert ports.mismatches() == []
    table = nb.table(Port)
    nb.db.set("port", "p2", {})
    assert [one.field for one in table.mismatches()] == ["network"]
    assert len(table.get_all()) == 1
    with pytest.raises(ValueMismatch):
        table.get("p2")
    assert nb.statistics().mismatches == 1


def test_changes_have_instances_and_tell_what_does_not_fit(nb: NbApi, cache: LocalCache) -> None:
    told = cache.table(Port).subscribe()
    nb.create("port", "p1", {"network": "n1"}, topic=TOPIC)
    nb.update("port", "p1", {"network": "n2"})
    nb.update("port", "p1", {"network": 3})
    nb.update("port", "p1", {"network": "n4"})
    nb.create("port", "p2", {"network": 5}, topic=TOPIC)
    nb.delete("port", "p1")
    nb.delete("port", "p2")
    changes = []
    for change in told.changes(timeout_s=WAIT_S):
        if not isinstance(change, Resynced):
            changes.append(change)
        if isinstance(change, Deleted) and change.key == "p2":
            break
    created, first, mismatched, second, bad, gone, bad_gone = changes
    assert isinstance(created, Created)
    assert created.object.value == Port("n1")
    assert isinstance(first, Updated)
    assert (first.object.value, first.before.value) == (Port("n2"), Port("n1"))
    assert isinstance(mismatched, Mismatched)
    assert mismatched.error.object is not None
    assert mismatched.error.object.value == {"network": 3}
    assert isinstance(second, Updated)
    assert second.object.value == Port("n4")
    with pytest.raises(ValueMismatch):
        _ = second.before
    assert isinstance(bad, Mismatched)
    assert (bad.key, bad.version) == ("p2", bad.error.object.version)
    assert isinstance(gone, Deleted)
    assert (gone.object.value, gone.reason) == (Port("n4"), "deleted")
    assert isinstance(bad_gone, Deleted)
    with pytest.raises(ValueMismatch):
        _ = bad_gone.object
    assert cache.statistics().mismatches == 2
    told.close()


def test_a_callback_gets_instances(nb: NbApi, cache: LocalCache) -> None:
    seen: list[Any] = []
    with cache.table(Port).subscribe(seen.extend) as told:
        nb.create("port", "p1", {"network": "n1"}, topic=TOPIC)
        wait_until(lambda: [one.object.value for one in seen if isinstance(one, Created)] == [Port("n1")])
        assert told.subscription.callback_errors == 0
        assert "TableSubscription" in repr(told)
    assert told.is_closed


def test_what_one_reader_changes_is_changed_for_nobody_else(nb: NbApi, cache: LocalCache) -> None:
    @stored_in("port")
    @dataclasses.dataclass
    class Loose:
        anything: Any

    version = nb.create("port", "p1", {"anything": {"list": [1]}}, topic=TOPIC)
    cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
    cache.table(Loose).get("p1").value.anything["list"].append(2)
    cache.table(Loose).get_all()[0].value.anything["list"].append(3)
    assert cache.get("port", "p1").value == {"anything": {"list": [1]}}


def test_an_index_of_instances(nb: NbApi, cache: LocalCache) -> None:
    ports = cache.table(Port)
    by_network = ports.index("by_network", lambda port: port.value.network)
    by_ip = ports.index("by_ip", lambda port: [a.ip for a in port.value.addresses], multiple=True, sorted=True)
    own = ports.index("own", lambda port: port.value.network, unique=True)
    table = nb.table(Port)
    table.create("p1", Port("n1", addresses=[Address("10.0.0.1"), Address("10.0.0.2")]), topic=TOPIC)
    nb.db.create("port", "p2", {"network": 5}, topic=TOPIC)
    version = table.create("p3", Port("n3"), topic=TOPIC)
    cache.wait_version("port", "p3", version, timeout_s=WAIT_S)
    assert [found.value.addresses[1].ip for found in by_network.get("n1")] == ["10.0.0.2"]
    assert [found.value.network for found in by_ip.range("10.0.0.2")] == ["n1"]
    assert (found := own.one("n3")) is not None
    assert found.value == Port("n3")
    assert own.one("n9") is None
    assert by_network.failed == ["p2"]
    assert cache.statistics().mismatches == 1
    assert cache.index("by_network").get("n1")[0].value["network"] == "n1"  # the same index, as it is stored


# -- controllers


def test_a_controller_gets_instances(nb: NbApi, cache: LocalCache) -> None:
    ran: dict[str, list[Any]] = {}
    ports = cache.table(Port)

    def reconcile(request: Request[Port]) -> None:
        shown = request.object or request.deleted
        ran.setdefault(request.key, []).append(None if shown is None else (shown.value, request.ending))

    nb.create("port", "p1", {"network": "n1"}, topic=TOPIC)
    nb.create("port", "p2", {"network": 5}, topic=TOPIC)
    with Controller(ports, reconcile, interval_min_s=0.0) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert ran == {"p1": [(Port("n1"), None)]}
        assert controller.statistics().given_up == 1
        nb.update("port", "p2", {"network": "n2"})
        wait_until(lambda: ran.get("p2") == [(Port("n2"), None)])
        nb.delete("port", "p1")
        wait_until(lambda: ran["p1"][1:] == [(Port("n1"), "deleted")])
        nb.update("port", "p2", {"network": 6})
        wait_until(lambda: controller.statistics().given_up == 2)
        nb.delete("port", "p2")  # what was made for it has to go, whether it fits or not
        wait_until(lambda: ran["p2"][1:] == [None])
        with pytest.raises(UsageError, match="works on table 'port' only"):
            controller.enqueue("net", "n1")
    assert cache.statistics().mismatches == 2
    with pytest.raises(UsageError, match="leave tables out"):
        Controller(ports, reconcile, tables=["net"])


def test_an_object_that_does_not_fit_has_no_owners_and_stops_nothing(nb: NbApi) -> None:
    class Binding(Model, table="binding"):
        port: str

    runs: list[str] = []
    nb.create("binding", "b1", {"port": 7}, topic=TOPIC)
    with LocalCache(nb, tables=["port", "binding"]) as cache:
        owners = {"binding": cache.table(Binding).adapted(lambda found: [("port", found.value.port)])}
        with Controller(
            cache.table(Port), lambda request: runs.append(request.key), owners=owners, interval_min_s=0.0
        ) as controller:
            controller.wait_idle(timeout_s=WAIT_S)
            assert (runs, controller.statistics().following.unmapped, cache.statistics().mismatches) == ([], 0, 1)
            nb.put("binding", "b1", {"port": "p1"}, topic=TOPIC)
            wait_until(lambda: runs == ["p1"])
            nb.put("binding", "b1", {"port": 8}, topic=TOPIC)  # those that it had are concerned
            wait_until(lambda: runs == ["p1", "p1"])
            controller.wait_idle(timeout_s=WAIT_S)


def test_owners_of_instances_and_asyncio(nb: NbApi) -> None:
    class Binding(Model, table="binding"):
        port: str

    async def main() -> None:
        runs: list[str] = []

        async def reconcile(request: aio.Request[Port]) -> None:
            assert isinstance(request.cache, aio.LocalCache)
            assert request.object is None or isinstance(request.object.value, Port)
            runs.append(request.key)

        with LocalCache(nb, tables=["port", "binding"]) as cache:
            owners = {"binding": cache.table(Binding).adapted(lambda found: [("port", found.value.port)])}
            async with aio.Controller(cache.table(Port), reconcile, owners=owners, interval_min_s=0.0) as controller:
                nb.table(Port).create("p1", Port("n1"), topic=TOPIC)
                while runs != ["p1"]:
                    await asyncio.sleep(0)
                nb.table(Binding).create("b1", Binding("p1"), topic=TOPIC)
                while runs != ["p1", "p1"]:
                    await asyncio.sleep(0)
                assert controller.statistics().failures == 0

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


# -- declaring


def test_classes_that_cannot_be_declared(nb: NbApi, cache: LocalCache) -> None:
    class Plain:
        network: str

    with pytest.raises(UsageError, match="no dataclass"):
        stored_in("port")(Plain)
    with pytest.raises(UsageError, match="not declared"):
        nb.table(Plain)
    with pytest.raises(UsageError, match="not declared"):
        nb.table("port")  # type: ignore[arg-type]
    with pytest.raises(InvalidObject):
        stored_in("")
    with pytest.raises(UsageError, match="array_like"):
        nb.table(stored_in("port")(msgspec.defstruct("Row", [("network", str)], array_like=True)))
    with pytest.raises(UsageError, match="cannot be the class"):
        nb.table(stored_in("port")(dataclasses.make_dataclass("Odd", [("either", "Address | Port")])))

    class Special(Port):
        more: int = 0

    with pytest.raises(UsageError, match="not declared"):
        table_of(Special)
    assert table_of(Port) == "port"
    with pytest.raises(UsageError, match="not followed"):
        cache.table(stored_in("net")(dataclasses.make_dataclass("Net", [("mtu", int)])))


def test_types_that_msgpack_does_not_have(nb: NbApi, cache: LocalCache) -> None:
    class Rich(Model, table="port", frozen=True, kw_only=True):
        raw: bytes
        when: datetime.datetime
        number: uuid.UUID
        names: frozenset[str]
        numbers: set[int]
        pair: tuple[int, str]
        part: Address | None = None

    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    rich = Rich(
        raw=b"\0",
        when=now,
        number=uuid.UUID(int=5),
        names=frozenset("ab"),
        numbers={0, 8},
        pair=(1, "x"),
        part=Address("::1"),
    )
    version = nb.table(Rich).create("p1", rich, topic=TOPIC)
    assert nb.get("port", "p1").value["raw"] == b"\0"
    assert nb.table(Rich).get("p1").value == rich
    found = cache.table(Rich).wait_version("p1", version, timeout_s=WAIT_S)
    assert found is not None
    assert found.value == rich
    assert list({0, 8}) != list({8, 0})  # equal sets, in another order
    assert nb.table(Rich).put("p1", dataclasses.replace(rich, numbers={8, 0}), topic=TOPIC) == version

    class Mixed(Model, table="net"):
        names: set[int | str]

    nb.table(Mixed).create("n1", Mixed({1, "a"}), topic=TOPIC)  # has no order
    assert nb.table(Mixed).get("n1").value.names == {1, "a"}


def test_a_class_that_raises_what_it_likes(nb: NbApi) -> None:
    @stored_in("port")
    @dataclasses.dataclass
    class Strict:
        network: str

        def __post_init__(self) -> None:
            if self.network == "bad":
                raise LookupError("no such network")

    nb.create("port", "p1", {"network": "bad"}, topic=TOPIC)
    with pytest.raises(ValueMismatch, match="no such network"):
        nb.table(Strict).get("p1")


def test_a_class_on_a_bus(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path), memory_bus()) as nb, LocalCache(nb, tables=["port"]) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        version = nb.table(Port).create("p1", Port("n1", addresses=[Address("::1")]), topic=TOPIC)
        found = cache.table(Port).wait_version("p1", version, timeout_s=WAIT_S)
        assert found is not None
        assert found.value == Port("n1", addresses=[Address("::1")])


def test_what_a_program_sees_of_them(nb: NbApi, cache: LocalCache) -> None:
    assert repr(nb.table(Port)).startswith("<Table 'port' of Port in ")
    assert repr(cache.table(Port)).startswith("<CachedTable 'port' of Port in ")
    assert repr(nb.transaction().table(Port)) == "<TransactionTable 'port'>"


class Dated(Model, table="port"):
    times: list[datetime.datetime | None]


def test_a_datetime_without_a_time_zone_is_refused_with_what_to_do(nb: NbApi) -> None:
    dated, naive = nb.table(Dated), datetime.datetime(2026, 1, 2, 3, 4, 5)
    advice = r"without a time zone.*datetime\.now\(timezone\.utc\)"
    with pytest.raises(ValueMismatch, match=advice) as refused:
        dated.create("p1", Dated([None, naive]), topic=TOPIC)
    assert refused.value.field == "times[1]"
    with pytest.raises(ValueMismatch, match=advice):  # also as a plain value, which would be a text when it is read
        nb.create("port", "p1", {"times": [naive]}, topic=TOPIC)
    wrong: Any = ["2026-01-02T03:04:05"]
    with pytest.raises(ValueMismatch, match="got `str`$"):  # a text is something else
        dated.create("p1", Dated(wrong), topic=TOPIC)
    assert nb.get_all("port") == []
