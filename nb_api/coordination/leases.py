"""What all leases in a database have in common; `pubsub_api.core.leases` says how a lease is held and judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from nb_api.coordination.lease_config import read_election_lease
from nb_api.db_api import DbApi
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from pubsub_api.core.leases import LEASE_S_MAX
from pubsub_api.errors import UsageError

Call_co = TypeVar("Call_co", covariant=True)

TOPIC = "heliograph/leases"
"""Objects need a topic; no cache follows this one."""

REFUSED = (ObjectExists, ObjectNotFound, VersionConflict)
"""What a write raises when another process has changed the object meanwhile."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds that have passed, those in which the machine was suspended included: other processes ran meanwhile."""
    return time.clock_gettime(_CLOCK)


def checked_lease(db: DbApi, lease_s: float | None) -> float:
    """Seconds, ``[election] lease`` when none are given.  Raises UsageError."""
    lease_s = read_election_lease(db.conf) if lease_s is None else lease_s
    if not 0 < lease_s <= LEASE_S_MAX:
        raise UsageError(f"a lease takes time, {LEASE_S_MAX:g} s at most, not {lease_s} s")
    return lease_s


class LeaseCore(Protocol[Call_co]):
    """What decides which calls are made to the database, and when."""

    @property
    def is_gone(self) -> bool:
        """Nothing will be called any more."""

    def next_call(self, now: float) -> Call_co | None: ...

    def due(self, now: float) -> float:
        """When `next_call` has something to do."""


def wait_call(
    core: LeaseCore[Call_co], changed: threading.Condition, is_late: Callable[[float], bool]
) -> Call_co | None:
    """Block until there is something to call, None when there never will be again, or it ``is_late`` for it.

    ``changed`` guards the core, and is notified when something else is due than before.
    """
    with changed:
        while True:
            now = lease_clock()
            if core.is_gone or is_late(now):
                return None
            if (call := core.next_call(now)) is not None:
                return call
            changed.wait(max(0.0, core.due(now) - now))


class LeaseWrite(Protocol):
    """What a core wants written, under the condition that the record has the version that it knows."""

    @property
    def kind(self) -> Literal["look", "create", "set", "delete"]: ...

    @property
    def value(self) -> Any: ...

    @property
    def expected_version(self) -> int | None: ...


def carry_out(db: DbApi, table: str, key: str, write: LeaseWrite) -> int:
    """The version that the record has then.  Raises what is in `REFUSED`, and DbError."""
    if write.kind == "create":
        return db.create(table, key, write.value, topic=TOPIC)
    if write.kind == "set":
        return db.set(table, key, write.value, expected_version=write.expected_version)
    return db.delete(table, key, expected_version=write.expected_version)
