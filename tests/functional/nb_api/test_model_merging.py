"""What is kept of a stored object must not count instead of what a program writes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nb_api import NbApi
from nb_api.models import Model, stored_in
from tests.helpers.nb_tools import open_nb, sqlite_url

TOPIC = "tenant-7"


@pytest.fixture
def nb(tmp_path: pathlib.Path) -> Iterator[NbApi]:
    with open_nb(sqlite_url(tmp_path)) as opened:
        yield opened


@stored_in("port")
class Short(msgspec.Struct, omit_defaults=True):
    """Leaves out of the stored value what has its default."""

    network: str
    mtu: int = 1500
    qos: str | msgspec.UnsetType = msgspec.UNSET


def test_a_repair_writes_defaults_that_are_left_out(nb: NbApi) -> None:
    nb.create("port", "p1", {"network": 7, "mtu": 9000, "qos": "gold", "added": True}, topic=TOPIC)
    nb.table(Short).put("p1", Short("n1"), topic=TOPIC)
    assert nb.table(Short).get("p1").value == Short("n1")
    assert nb.get("port", "p1").value == {"network": "n1", "added": True}


@stored_in("port")
class Renamed:
    """As a pydantic model with AliasChoices: reads a field by its former name as well, and writes the new one."""

    def __init__(self, network: str) -> None:
        self.network = network

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> Renamed:
        return cls(value["net"] if "net" in value else value["network"])

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        return {"network": self.network}


@pytest.mark.parametrize("way", ["update", "put", "function"])
def test_a_former_name_does_not_count_after_an_update(nb: NbApi, way: str) -> None:
    nb.create("port", "p1", {"net": "n1", "added": True}, topic=TOPIC)
    ports = nb.table(Renamed)
    if way == "put":
        ports.put("p1", Renamed("n2"), topic=TOPIC)
    else:
        ports.update("p1", Renamed("n2") if way == "update" else lambda _port: Renamed("n2"))
    assert ports.get("p1").value.network == "n2"
    assert nb.get("port", "p1").value == {"network": "n2", "added": True}


class Vlan(msgspec.Struct, tag="vlan"):
    number: int


class Vxlan(msgspec.Struct, tag="vxlan", omit_defaults=True):
    number: int
    udp_port: int = 4789


@stored_in("segment")
class Segment(msgspec.Struct):
    kind: Vlan | Vxlan


def test_unknown_fields_of_one_kind_are_no_fields_of_another(nb: NbApi) -> None:
    nb.create("segment", "s1", {"kind": {"type": "vlan", "number": 7, "udp_port": 1}, "added": True}, topic=TOPIC)
    nb.table(Segment).update("s1", Segment(Vxlan(8)))
    assert nb.table(Segment).get("s1").value == Segment(Vxlan(8))
    assert nb.get("segment", "s1").value["added"] is True


class Counted(Model, table="port"):
    """Is read as another instance each time."""

    network: str
    reading: int = 0

    def __post_init__(self) -> None:
        _readings.append(1)
        self.reading = len(_readings)


_readings: list[int] = []


def test_what_is_read_in_another_way_each_time_keeps_unknown_fields(nb: NbApi) -> None:
    nb.create("port", "p1", {"network": "n1", "added": True}, topic=TOPIC)
    nb.table(Counted).update("p1", lambda _port: Counted("n2"))
    assert nb.get("port", "p1").value["network"] == "n2"
    assert nb.get("port", "p1").value["added"] is True
