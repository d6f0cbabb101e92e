"""A class of a table is changed while programs of both releases run: what each makes of the other's objects."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from nb_api import NbApi
from nb_api.errors import ValueMismatch
from nb_api.models import Model, stored_in
from nb_api.models.unknown_fields import keep_unknown
from tests.helpers.nb_tools import open_nb, sqlite_url

TOPIC = "tenant-7"


class Address(Model):
    ip: str


class NewAddress(Model):
    ip: str
    prefix: int = 0


class Port(Model, table="port"):
    """The release that the others are compared with."""

    network: str
    mtu: int = 1500
    addresses: list[Address] = dataclasses.field(default_factory=list)
    gateway: Address | None = None
    by_name: dict[str, Address] = dataclasses.field(default_factory=dict)
    pair: tuple[Address, int] | None = None


@pytest.fixture
def old(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    """The program of the older release."""
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def new(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def newest(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


def rewrite(nb: NbApi) -> None:
    """The three ways in which a program of the older release changes a field."""
    ports = nb.table(Port)
    ports.update("p1", lambda port: dataclasses.replace(port, mtu=port.mtu + 1))
    ports.update("p1", dataclasses.replace(ports.get("p1").value, network="n2"))
    ports.put("p1", dataclasses.replace(ports.get("p1").value, mtu=9000), topic=TOPIC)


def test_a_field_is_added(old: NbApi, new: NbApi) -> None:
    class Added(Model, table="port"):
        network: str
        mtu: int = 1500
        qos: str = "none"

    old.table(Port).create("p1", Port("n1"), topic=TOPIC)
    assert new.table(Added).get("p1").value == Added("n1")
    new.table(Added).update("p1", lambda port: dataclasses.replace(port, qos="gold"))
    assert old.table(Port).get("p1").value == Port("n1")
    rewrite(old)
    assert new.table(Added).get("p1").value == Added("n2", 9000, "gold")


def test_an_older_writer_that_changes_nothing_writes_nothing(old: NbApi, new: NbApi) -> None:
    """Whatever the order of the fields is, and however they were written."""

    @stored_in("port")
    @dataclasses.dataclass
    class Loose:
        ratio: float
        names: set[str]

    version = new.create("port", "p1", {"newer": 1, "names": ["b", "a", "b"], "ratio": 1}, topic=TOPIC)
    loose = old.table(Loose)
    assert loose.put("p1", Loose(1.0, {"a", "b"}), topic=TOPIC) == version
    assert loose.update("p1", loose.get("p1").value) == version
    loose.update("p1", Loose(2.0, {"a"}))
    assert old.get("port", "p1").value == {"newer": 1, "names": ["a"], "ratio": 2.0}


def test_a_field_is_added_that_must_be_there(old: NbApi, new: NbApi) -> None:
    class Demanding(Model, table="port"):
        network: str
        qos: str

    old.table(Port).create("p1", Port("n1"), topic=TOPIC)
    with pytest.raises(ValueMismatch) as told:
        new.table(Demanding).get("p1")
    assert told.value.field == "qos"
    new.table(Demanding).update("p1", Demanding("n1", "gold"))
    assert old.table(Port).get("p1").value == Port("n1")


def test_a_field_is_removed(old: NbApi, new: NbApi, newest: NbApi) -> None:
    class Removed(Model, table="port"):
        network: str

    old.table(Port).create("p1", Port("n1", mtu=9000), topic=TOPIC)
    new.table(Removed).update("p1", lambda _port: Removed("n2"))
    assert old.table(Port).get("p1").value == Port("n2", mtu=9000)
    new.table(Removed).create("p2", Removed("n1"), topic=TOPIC)
    assert old.table(Port).get("p2").value == Port("n1")

    class Without(Model, table="port"):
        mtu: int = 1500

    new.delete("port", "p1")
    newest.table(Without).create("p1", Without(), topic=TOPIC)
    with pytest.raises(ValueMismatch) as told:  # the older release needs it
        old.table(Port).get("p1")
    assert told.value.field == "network"


def test_a_field_is_renamed(old: NbApi, new: NbApi) -> None:
    @stored_in("port")
    class Named(msgspec.Struct):
        net: str = msgspec.field(name="network")
        size: int = msgspec.field(default=1500, name="mtu")

    old.table(Port).create("p1", Port("n1"), topic=TOPIC)
    assert new.table(Named).get("p1").value == Named("n1")
    new.table(Named).update("p1", Named("n2", 9000))
    assert old.table(Port).get("p1").value == Port("n2", 9000)


def test_a_field_is_renamed_without_care(old: NbApi, new: NbApi) -> None:
    class Renamed(Model, table="port"):
        network: str
        size: int = 1500

    old.table(Port).create("p1", Port("n1", mtu=9000), topic=TOPIC)
    assert new.table(Renamed).get("p1").value == Renamed("n1")  # it is another field
    new.table(Renamed).update("p1", lambda port: dataclasses.replace(port, size=1400))
    assert old.table(Port).get("p1").value == Port("n1", mtu=9000)
    assert old.get("port", "p1").value["size"] == 1400


def test_the_type_of_a_field_is_changed(old: NbApi, new: NbApi, newest: NbApi) -> None:
    class Changed(Model, table="port"):
        network: int

    old.table(Port).create("p1", Port("n1"), topic=TOPIC)
    with pytest.raises(ValueMismatch) as told:
        new.table(Changed).get("p1")
    assert (told.value.field, told.value.object) == ("network", old.get("port", "p1"))
    assert old.table(Port).get("p1").value == Port("n1")

    class Wider(Model, table="port"):
        network: int | str

    assert newest.table(Wider).get("p1").value == Wider("n1")
    newest.table(Wider).update("p1", Wider(5))
    with pytest.raises(ValueMismatch) as told:
        old.table(Port).get("p1")
    assert told.value.field == "network"


def test_a_field_is_made_optional(old: NbApi, new: NbApi) -> None:
    class Optional(Model, table="port"):
        network: str | None = None
        mtu: int | None = None

    old.table(Port).create("p1", Port("n1"), topic=TOPIC)
    assert new.table(Optional).get("p1").value == Optional("n1", 1500)
    new.table(Optional).update("p1", Optional("n2", 9000))
    assert old.table(Port).get("p1").value == Port("n2", 9000)
    new.table(Optional).update("p1", Optional("n2"))
    with pytest.raises(ValueMismatch) as told:
        old.table(Port).get("p1")
    assert told.value.field == "mtu"


def test_a_part_gets_a_field(old: NbApi, new: NbApi) -> None:
    class Nested(Model, table="port"):
        network: str
        addresses: list[NewAddress] = dataclasses.field(default_factory=list)
        gateway: NewAddress | None = None
        by_name: dict[str, NewAddress] = dataclasses.field(default_factory=dict)
        pair: tuple[NewAddress, int] | None = None

    new.table(Nested).create(
        "p1",
        Nested(
            "n1",
            [NewAddress("a", 1), NewAddress("b", 2)],
            NewAddress("g", 3),
            {"x": NewAddress("x", 4)},
            (NewAddress("l", 5), 1),
        ),
        topic=TOPIC,
    )
    rewrite(old)
    assert new.table(Nested).get("p1").value.addresses == [NewAddress("a", 1), NewAddress("b", 2)]

    def change(port: Port) -> Port:
        port.addresses[1].ip = "B"
        port.gateway = Address("G")
        port.by_name["x"].ip = "X"
        port.by_name["y"] = Address("Y")
        return port

    old.table(Port).update("p1", change)
    found = new.table(Nested).get("p1").value
    assert found.addresses == [NewAddress("a", 1), NewAddress("B", 2)]
    assert found.gateway == NewAddress("G", 3)
    assert found.by_name == {"x": NewAddress("X", 4), "y": NewAddress("Y")}
    for addresses, expected in (
        ([Address("B"), Address("a")], [("B", 2), ("a", 1)]),  # another order
        ([Address("c"), Address("B"), Address("a")], [("c", 0), ("B", 2), ("a", 1)]),  # one more, at the front
        ([Address("B"), Address("a")], [("B", 2), ("a", 1)]),  # one is gone
        ([], []),
    ):
        old.table(Port).update("p1", lambda port, wanted=addresses: dataclasses.replace(port, addresses=wanted))
        assert [(one.ip, one.prefix) for one in new.table(Nested).get("p1").value.addresses] == expected
    old.table(Port).update(
        "p1", lambda port: dataclasses.replace(port, gateway=None, by_name={}, pair=(Address("l"), 2))
    )
    assert new.table(Nested).get("p1").value.pair == (NewAddress("l", 5), 2)
    found = new.table(Nested).get("p1").value
    assert (found.gateway, found.by_name) == (None, {})


@pytest.mark.parametrize("kind", ["struct", "omits", "forbids", "pydantic"])
def test_other_kinds_keep_what_they_do_not_know(old: NbApi, new: NbApi, kind: str) -> None:
    if kind == "pydantic":
        pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
        cls: Any = pydantic.create_model("Kept", network=(str, ...), mtu=(int, 1500))
    else:
        options: dict[str, Any] = {"omits": {"omit_defaults": True}, "forbids": {"forbid_unknown_fields": True}}
        cls = msgspec.defstruct("Kept", [("network", str), ("mtu", int, 1500)], **options.get(kind, {}))
    stored_in("port")(cls)
    new.create("port", "p1", {"network": "n1", "mtu": 9000, "newer": {"deep": [1]}}, topic=TOPIC)
    ports = old.table(cls)
    if kind == "forbids":
        with pytest.raises(ValueMismatch) as told:
            ports.get("p1")
        assert told.value.field == "newer"
        return
    ports.update("p1", cls(network="n2"))  # with what is left out, it is the default again
    assert ports.get("p1").value == cls(network="n2", mtu=1500)
    assert new.get("port", "p1").value["newer"] == {"deep": [1]}
    assert new.get("port", "p1").value.get("mtu", 1500) == 1500


# -- the comparison by itself


def plain(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.choice(("dict", "list", "number")) if depth else "number"
    if kind == "dict":
        return {name: plain(chance, depth - 1) for name in "abcd" if chance.random() < 0.6}
    if kind == "list":
        return [plain(chance, depth - 1) for _ in range(chance.randrange(4))]
    return chance.randrange(3)


def without(value: Any, unknown: Callable[[str], bool]) -> Any:
    """What a class makes of a value that knows only some names."""
    if isinstance(value, dict):
        return {name: without(part, unknown) for name, part in value.items() if not unknown(name)}
    return [without(part, unknown) for part in value] if isinstance(value, list) else value


def test_what_is_wanted_is_written_and_nothing_else_is_lost() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        stored, wanted = plain(chance), without(plain(chance), "cd".__contains__)
        known = without(stored, "cd".__contains__)
        result = keep_unknown(stored, known, wanted)
        assert without(result, "cd".__contains__) == wanted, seed
        assert keep_unknown(stored, known, known) == stored, f"seed {seed}: nothing was changed"
        if isinstance(stored, dict) and isinstance(wanted, dict):
            assert all(result[name] == stored[name] for name in "cd" if name in stored), seed
