"""A schema for values, from what the newest events of a log look like."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import durable_log
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import UsageError

EVENTS_MAX = 1_000
"""Most events of a shard that are looked at."""
_PLAIN = {
    bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary", datetime.datetime: "timestamp",
}  # fmt: skip
_NUMBERS = {"bigint", "double"}
_BIGINT = range(-(1 << 63), 1 << 63)
_Kind = Any
"""A type of Spark by name; a dict of them, a struct; a list of one, an array; None, where every type is possible."""


def infer_value_schema(url: str, topics: Sequence[str] = ("#",), *, events_max: int = EVENTS_MAX) -> str:
    """What to give as ``value_schema``, from the newest values of a log that are maps.

    A field whose values have no type in common, or are all null, is left out.  Note the result in your program: events
    that come later may suggest another one.  Raises UsageError when there are no such values, LogError.
    """
    filters = FilterSet(topics)
    kind: _Kind = None
    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        for state in log.state():
            start = max(state.start, state.end - events_max)
            for batch in durable_log.arrow_batches(log, state.shard, start, state.end, columns=["topic", "value"]):
                found = zip(batch.column("topic").to_pylist(), batch.column("value").to_pylist(), strict=True)
                kind = _common([kind, *(_kind(value) for topic, value in found if value and filters.match(topic))])
    schema = _fields(kind) if isinstance(kind, dict) else ""
    if not schema:
        raise UsageError(f"no event of {', '.join(topics)} has a value from which a schema could be made")
    return schema


def _kind(value: bytes) -> _Kind:
    """Of a value that is no map, nothing is known."""
    try:
        decoded = msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return _kind_of(decoded) if isinstance(decoded, dict) else None


def _kind_of(value: object) -> _Kind:
    if isinstance(value, dict):
        return {name: _kind_of(item) for name, item in value.items() if isinstance(name, str)}
    if isinstance(value, list):
        return [_common(map(_kind_of, value))]
    if isinstance(value, int) and value not in _BIGINT:
        return _MIXED
    return None if value is None else _PLAIN.get(type(value), _MIXED)


_MIXED = "mixed"
"""Values that have no type of Spark in common."""


def _common(kinds: Iterable[_Kind]) -> _Kind:
    """The type that has room for all of these."""
    common: _Kind = None
    for kind in kinds:
        if kind is None or kind == common:
            continue
        if common is None:
            common = kind
        elif isinstance(kind, dict) and isinstance(common, dict):
            names = dict.fromkeys((*common, *kind))
            common = {name: _common((common.get(name), kind.get(name))) for name in names}
        elif isinstance(kind, list) and isinstance(common, list):
            common = [_common((common[0], kind[0]))]
        elif isinstance(kind, str) and isinstance(common, str) and {kind, common} == _NUMBERS:
            common = "double"
        else:
            common = _MIXED
    return common


def _fields(kinds: dict[str, _Kind]) -> str:
    written = {name: _text(kind) for name, kind in kinds.items()}
    return ", ".join(f"`{name.replace('`', '``')}` {text}" for name, text in written.items() if text)


def _text(kind: _Kind) -> str:
    """As Spark writes it; empty when there is no such type."""
    if isinstance(kind, dict):
        fields = _fields(kind)
        return f"struct<{fields}>" if fields else ""
    if isinstance(kind, list):
        element = _text(kind[0])
        return f"array<{element}>" if element else ""
    return "" if kind in (None, _MIXED) else str(kind)
