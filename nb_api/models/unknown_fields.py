"""Keeping the fields of an object that a class does not know, because a newer program has added them.

When an older program reads the object, changes a field and writes it, the added fields must stay.  So three values are
compared: the stored value, the same as the class knows it (without the added fields), and the value to be written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pubsub_api.core.events import ENCODING_ERRORS

_encode = msgspec.msgpack.Encoder().encode


def keep_unknown(stored: Any, known: Any, wanted: Any) -> Any:
    """``wanted``, with all that is in ``stored`` and not in ``known``, at every depth; ``stored`` if nothing changes.

    Fields of dicts are matched by their keys.  Elements of lists are matched when they are equal; the others by their
    positions, if the list has as many elements as before.
    """
    if _is_same(known, wanted):
        return stored
    if type(stored) is not type(wanted) or type(known) is not type(wanted):
        return wanted
    if type(wanted) is dict:
        return _keep_unknown_fields(stored, known, wanted)
    if type(wanted) is list and len(stored) == len(known):
        return _keep_unknown_in_list(stored, known, wanted)
    return wanted


def _keep_unknown_fields(stored: dict[Any, Any], known: dict[Any, Any], wanted: dict[Any, Any]) -> dict[Any, Any]:
    result = {}
    for name, part in stored.items():  # in the stored order: values with another order count as different
        if name in wanted:
            result[name] = keep_unknown(part, known[name], wanted[name]) if name in known else wanted[name]
        elif name not in known:
            result[name] = part
    return {**result, **{name: part for name, part in wanted.items() if name not in stored}}


def _keep_unknown_in_list(stored: list[Any], known: list[Any], wanted: list[Any]) -> list[Any]:
    result = list(wanted)
    unmatched = dict.fromkeys(range(len(known)))
    changed = []
    for position, part in enumerate(wanted):
        candidates = (position, *unmatched)
        match = next((one for one in candidates if one in unmatched and _is_same(known[one], part)), None)
        if match is None:
            changed.append(position)
        else:
            del unmatched[match]
            result[position] = stored[match]
    if len(wanted) == len(known):
        for position in changed:
            if position in unmatched:
                result[position] = keep_unknown(stored[position], known[position], wanted[position])
    return result


def _is_same(one: Any, other: Any) -> bool:
    """Whether they are stored equally: True is not 1, and 1.0 is not 1."""
    try:
        return _encode(one) == _encode(other)
    except ENCODING_ERRORS:  # the write will raise
        return False
