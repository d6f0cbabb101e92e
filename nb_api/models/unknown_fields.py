"""Keeping what a class does not know: fields that a newer program has added to an object.

An older program reads the object, changes a field and writes it.  What its class does not have must still be there.  So
three values are compared: what is stored, what the class makes of that (without what it does not know), and what is to
be written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pubsub_api.core.events import ENCODING_ERRORS

_encode = msgspec.msgpack.Encoder().encode


def kept(stored: Any, known: Any, wanted: Any) -> Any:
    """``wanted``, with what is in ``stored`` and not in ``known``, at every depth; ``stored`` when nothing is changed.

    Parts of a dict belong together by their key.  Elements of a list belong together when they are equal, and else by
    their place if the list is as long as before.
    """
    if _is_same(known, wanted):
        return stored
    if type(stored) is not type(wanted) or type(known) is not type(wanted):
        return wanted
    if type(wanted) is dict:
        return _kept_fields(stored, known, wanted)
    if type(wanted) is list and len(stored) == len(known):
        return _kept_elements(stored, known, wanted)
    return wanted


def _kept_fields(stored: dict[Any, Any], known: dict[Any, Any], wanted: dict[Any, Any]) -> dict[Any, Any]:
    result = {}
    for name, part in stored.items():  # in this order: a value in another order is another value
        if name in wanted:
            result[name] = kept(part, known[name], wanted[name]) if name in known else wanted[name]
        elif name not in known:
            result[name] = part
    return {**result, **{name: part for name, part in wanted.items() if name not in stored}}


def _kept_elements(stored: list[Any], known: list[Any], wanted: list[Any]) -> list[Any]:
    result = list(wanted)
    free = dict.fromkeys(range(len(known)))
    changed = []
    for place, part in enumerate(wanted):
        equal = next((other for other in (place, *free) if other in free and _is_same(known[other], part)), None)
        if equal is None:
            changed.append(place)
        else:
            del free[equal]
            result[place] = stored[equal]
    if len(wanted) == len(known):
        for place in changed:
            if place in free:
                result[place] = kept(stored[place], known[place], wanted[place])
    return result


def _is_same(one: Any, other: Any) -> bool:
    """As they are stored: True is not 1, and 1.0 is not 1."""
    try:
        return _encode(one) == _encode(other)
    except ENCODING_ERRORS:  # told when it is to be written
        return False
