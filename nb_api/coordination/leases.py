"""What all leases in a database have in common; `pubsub_api.core.leases` says how a lease is held and judged."""

from __future__ import annotations

import time
from typing import Any, Literal, Protocol

from nb_api.db_api import DbApi
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict

TOPIC = "heliograph/leases"
"""Objects need a topic; no cache follows this one."""

REFUSED = (ObjectExists, ObjectNotFound, VersionConflict)
"""What a write raises when another process has changed the object meanwhile."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds that have passed, those in which the machine was suspended included: other processes ran meanwhile."""
    return time.clock_gettime(_CLOCK)


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
