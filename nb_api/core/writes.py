"""Writes on their way to a database: checked once for all drivers, refused with the same errors by all drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from nb_api.core import checks
from nb_api.core.changes import Change, Write, WriteAction, Written
from nb_api.core.own_tables import is_own
from nb_api.errors import DbError, ObjectExists, ObjectNotFound, VersionConflict
from pubsub_api.core.headers import NO_HEADERS
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import HeliographError, LimitReached, UsageError

Refusal = Literal["exists", "missing", "conflict"]
"""Why a write cannot be done, in the words that stored functions use too."""


class CheckedWrite(NamedTuple):
    """A `Write` that obeys the rules.  ``value`` is msgpack, None for a delete; ``topic`` None keeps the topic."""

    action: WriteAction
    table: str
    key: str
    topic: str | None
    value: bytes | None
    expected_version: int | None
    with_outbox: bool
    """Whether the change waits in the outbox until it is published."""
    if_changed: bool
    """Whether nothing is to be written when the object has this value and this topic already."""


class WriteLimits(NamedTuple):
    """The bounds of one transaction."""

    count_max: int
    bytes_max: int
    """Of all values together, when there is more than one."""
    value_bytes_max: int


def check_writes(writes: Sequence[Write], limits: WriteLimits, with_outbox: bool) -> list[CheckedWrite]:
    """Raises what `DbApi.apply` says, before the database is asked."""
    if len(writes) > limits.count_max:
        raise LimitReached(f"{len(writes)} writes are more than one transaction takes, which is {limits.count_max}")
    if len(writes) == 1:
        return [_check(writes[0], limits.value_bytes_max, with_outbox)]
    checked = []
    for position, write in enumerate(writes):
        try:
            checked.append(_check(write, limits.value_bytes_max, with_outbox))
        except (UsageError, LimitReached) as error:
            raise type(error)(f"writes[{position}]: {error}") from error
    _check_together(checked, limits.bytes_max)
    return checked


def _check_together(writes: Sequence[CheckedWrite], bytes_max: int) -> None:
    total = sum(len(write.value or b"") for write in writes)
    if total > bytes_max:
        raise LimitReached(f"values of {total} bytes are more than {bytes_max}, eight times [db] value_bytes_max")
    names: set[tuple[str, str]] = set()
    for position, write in enumerate(writes):
        name = (write.table, write.key)
        if name in names:
            raise UsageError(f"writes[{position}]: {write.table} {write.key!r} is written twice in one transaction")
        names.add(name)


def _check(write: Write, value_bytes_max: int, with_outbox: bool) -> CheckedWrite:
    action, topic, value = write.action, write.topic, None
    checks.check_object(write.table, write.key)
    if action in ("create", "put") or topic is not None:
        check_topic(topic)  # type: ignore[arg-type]  # it refuses None, which is the point
    checks.check_expected(write.expected_version)
    if action not in ("create", "set", "delete", "put"):
        raise UsageError(f"an action is create, set, delete or put, not {action!r}")
    if action == "create" and write.expected_version is not None:
        raise UsageError("a create expects no version: it expects that there is no object")
    if action == "delete" and not (write.value is None and topic is None):
        raise UsageError("a delete has neither a value nor a topic")
    if action != "delete":
        value = checks.encode_value(write.value, bytes_max=value_bytes_max)
    is_published = with_outbox and not is_own(write.table)
    if_changed = action == "put" or (action == "set" and write.if_changed)
    return CheckedWrite(action, write.table, write.key, topic, value, write.expected_version, is_published, if_changed)


def find_refusal(write: CheckedWrite, version: int | None, is_alive: bool) -> Refusal | None:
    """Why the write cannot be done on an object of that version, None when it can.  ``is_alive``: no tombstone."""
    if write.action == "create":
        return "exists" if is_alive else None
    if write.action == "put" and write.expected_version is None:
        return None
    if not is_alive:
        return "missing"
    return "conflict" if write.expected_version not in (None, version) else None


def plan_write(
    write: CheckedWrite, version: int | None, old_topic: str | None, *, is_alive: bool, is_equal: bool
) -> Written:
    """What a write that is not refused does to an object of that version and topic, or to a tombstone or to nothing.

    ``is_equal``: the object has the value of the write.  The driver that carries the plan out replaces the version by
    the revision, unless nothing is to be written.
    """
    topic = write.topic if write.topic is not None else old_topic or ""
    if write.action == "delete":
        return Written(0, "delete", topic)
    if not is_alive:
        return Written(0, "create", topic)
    if write.if_changed and is_equal and topic == old_topic:
        return Written(version or 0, None, topic)
    return Written(0, "set", topic, old_topic if topic != old_topic else None)


def committed_changes(
    writes: Sequence[CheckedWrite], written: Sequence[Written], headers: Mapping[str, str] = NO_HEADERS
) -> list[Change]:
    """The changes as the feed has them, with headers; values stay as they were encoded for the database."""
    return [
        Change(
            outcome.version,
            outcome.action,
            write.table,
            write.key,
            outcome.topic,
            None if write.value is None else msgspec.Raw(write.value),
            outcome.left_topic,
            headers,
        )
        for write, outcome in zip(writes, written, strict=True)
        if outcome.action is not None
    ]


def refusal_error(writes: Sequence[CheckedWrite], position: int, refusal: str, version: int | None) -> HeliographError:
    """The error for it.  ``version`` is that of the object or of its tombstone."""
    write = writes[position]
    name = f"{write.table} {write.key!r}"
    where = "" if len(writes) == 1 else f"writes[{position}]: "
    error: DbError
    if refusal == "exists":
        error = ObjectExists(f"{where}{name} exists, with version {version}")
    elif refusal == "missing":
        error = not_found(write.table, write.key, version, where)
    elif refusal == "conflict":
        error = VersionConflict(f"{where}{name} has version {version}, not {write.expected_version} as expected")
    else:
        error = DbError(f"{where}the database answered {refusal!r}")
    error.position = position
    return error


def not_found(table: str, key: str, deleted_version: int | None, where: str = "") -> ObjectNotFound:
    """The error for an object that is not there, with the version of its tombstone if any."""
    gone = "does not exist" if deleted_version is None else f"was deleted, with version {deleted_version}"
    return ObjectNotFound(f"{where}{table} {key!r} {gone}", deleted_version=deleted_version)
