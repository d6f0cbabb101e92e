"""From a write in a database to the copies of its followers: the two ends of a system that is compared.

The writer writes objects, one or several per transaction; the follower keeps a copy of them all and tells a `CopySink`
of every change when its copy has it.  The value of an object holds its number and the time just before it was written.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench import events

OBJECTS = 500
TABLE = events.TABLE
BROKER_IS_DATABASE = "database"
"""The database server passes the bus's frames on as well."""
_LOOK_INTERVAL_S = 0.01


class ObjectWrite(NamedTuple):
    key: str
    topic: str
    value: dict[str, Any]


def key_of(place: int) -> str:
    return f"port-{place:05d}"


def object_write(place: int, number: int, *, tenant_size: int = 100) -> ObjectWrite:
    """The object at this place with a new value, about 150 bytes as msgpack, stamped now.  The objects of a tenant
    are next to each other, so that a transaction of up to 100 objects belongs to one topic."""
    at, tenant = place % events.POOL, place // tenant_size
    value = {"id": events.KEYS[at], **events.VALUES[at], "tenant": tenant, "number": number, "at": time.monotonic_ns()}
    return ObjectWrite(key_of(place), events.topic(tenant), value)


class CopySink:
    """What a follower calls with every change that its copy has."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        """Number of the newest change, by key."""
        self.begin()

    def begin(self) -> None:
        self.latencies_ns = array("q")
        self.ended_ns = 0

    def on_change(self, key: str, value: Mapping[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        self.latencies_ns.append(now_ns - value["at"])
        self.newest[key] = value["number"]
        self.ended_ns = now_ns

    def lacks(self, wanted: Mapping[str, int]) -> int:
        """How many of these objects have not this number or a higher one."""
        return sum(self.newest.get(key, -1) < number for key, number in wanted.items())

    def wait(self, wanted: Mapping[str, int], quiet_s: float) -> int:
        """Return when every object has this number or a higher one, or when nothing came for so long.

        Returns how many have not.
        """
        heard, quiet_since = -1, time.monotonic()
        while missing := self.lacks(wanted):
            if len(self.latencies_ns) != heard:
                heard, quiet_since = len(self.latencies_ns), time.monotonic()
            elif time.monotonic() - quiet_since > quiet_s:
                break
            time.sleep(_LOOK_INTERVAL_S)
        return missing


class ChangeWriter(abc.ABC):
    """One that writes.  Opened by its constructor."""

    @abc.abstractmethod
    def __init__(self, database: str, bus: str) -> None:
        """``bus`` is the URL of the bus, empty for a system that needs none."""

    @property
    def addresses(self) -> list[str]:
        """Where followers find it; empty when they find it through the database or the broker."""
        return []

    def fill(self, writes: Sequence[ObjectWrite]) -> None:
        """Make the objects, which may be there already."""
        for write in writes:
            self.put(write)

    @abc.abstractmethod
    def put(self, write: ObjectWrite) -> None:
        """Write one object; returns when it is committed."""

    @abc.abstractmethod
    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        """Write several objects, which exist, in one transaction."""

    def finish(self) -> None:  # noqa: B027  most have told everything when the commit returns
        """Return when everything written has been told."""

    @abc.abstractmethod
    def close(self) -> None: ...


class ChangeFollower(abc.ABC):
    """One that keeps a copy.  Its constructor returns when the copy is complete and further changes will come; a thread
    of its own, or of the library, calls the sink."""

    @abc.abstractmethod
    def __init__(self, database: str, bus: str, addresses: Sequence[str], sink: CopySink) -> None: ...

    @abc.abstractmethod
    def numbers(self) -> dict[str, int]:
        """The number of every object, read from the copy itself."""

    @abc.abstractmethod
    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class ChangeSystem:
    """A way from a writer to copies.  Picklable: workers are given the classes by reference."""

    name: str
    database: str
    """Of `bench.database_servers.KINDS`."""
    writer: type[ChangeWriter]
    follower: type[ChangeFollower] | None
    """None: it only writes."""
    bus: str = ""
    """The URL of Heliograph's bus, or `BROKER_IS_DATABASE`; empty when there is no bus."""
    peer: str = ""
    """The name of the system that it is compared with."""
    has_service: bool = False
    """Writers publish through the publisher service."""
    together_max: int = 100
    """Most writes of a transaction."""
