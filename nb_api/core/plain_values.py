"""Copies of values: plain data as msgpack gives it, without cycles.  Does no I/O.

Whoever reads an object gets a value of its own.  What one reader changes is then changed for nobody else.  A frozen
view would cost less, but it is no dict: programs encode, merge and compare values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from pubsub_api.core.events import PLAIN_TYPES
from pubsub_api.errors import UsageError

_AS_THEY_ARE = (bytes, type(msgspec.msgpack.decode(b"\xd6\xff\0\0\0\0")))
"""What `msgspec.to_builtins` would turn into text, bytes and timestamps of msgpack; neither can be changed."""

FieldValues = tuple[tuple[str, Any], ...]
"""Fields of a value, each with what it must be."""
_NOTHING = object()


def copied(value: Any) -> Any:
    """A value that shares nothing with this one that could be changed."""
    if type(value) in PLAIN_TYPES:
        return value
    try:
        return msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE)
    except (TypeError, ValueError):  # an extension of msgpack, which a foreign publisher may send
        return copy.deepcopy(value)


def field_values(where: Mapping[str, Any] | None) -> FieldValues:
    """Raises UsageError."""
    if not isinstance(where, Mapping | None):
        raise UsageError(f"a selection is a mapping from a field to its value, not {where!r}")
    return tuple((name, copied(wanted)) for name, wanted in (where or {}).items())


def is_selected(value: Any, where: FieldValues) -> bool:
    """Whether a value has all of these fields, and in them what is wanted."""
    if type(value) is not dict:
        return False
    for name, wanted in where:  # noqa: SIM110  for every event there is, and a generator takes three times as long
        if value.get(name, _NOTHING) != wanted:
            return False
    return True
