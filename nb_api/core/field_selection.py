"""What a selection by fields asks of the values of objects.  Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nb_api.core.checks import decode_value, encode_value
from pubsub_api.errors import UsageError

FieldValues = tuple[tuple[str, Any], ...]
"""Fields of a value, each with what it must be."""
_NOTHING = object()
_ANY_SIZE = 2**62


def field_values(where: Mapping[str, Any] | None) -> FieldValues:
    """Raises UsageError, also for what no object can have because nothing is read as that."""
    if not isinstance(where, Mapping | None):
        raise UsageError(f"a selection is a mapping from a field to its value, not {where!r}")
    return tuple((name, _as_read(name, wanted)) for name, wanted in (where or {}).items())


def _as_read(name: str, wanted: Any) -> Any:
    read = decode_value(encode_value(wanted, bytes_max=_ANY_SIZE))
    if read != wanted:  # as a tuple, which is read as a list, and a float that is no number
        raise UsageError(f"no object is selected by {wanted!r} in the field {name!r}: it would be read as {read!r}")
    return read


def is_selected(value: Any, where: FieldValues) -> bool:
    """Whether a value has all of these fields, and in them what is wanted.  True and False are no numbers."""
    if type(value) is not dict:
        return False
    for name, wanted in where:  # for every event there is, and a generator takes three times as long
        found = value.get(name, _NOTHING)
        if found != wanted or (type(found) is not str and not _has_same_truths(found, wanted)):
            return False
    return True


def _has_same_truths(found: Any, wanted: Any) -> bool:
    """Of two equal values: whether they have True and False in the same places, and not 1 and 0."""
    if type(found) is list:
        return all(map(_has_same_truths, found, wanted))
    if type(found) is dict:
        return all(_has_same_truths(part, wanted[name]) for name, part in found.items())
    return (type(found) is bool) is (type(wanted) is bool)
