"""Rows of a segment as JSON, an object for each event, and back without a difference.

An object has the columns of `durable_log.segments.columns`; what is null is left out.  Binary columns are base64,
``guid`` is hexadecimal, and a number that not every reader of JSON can hold is a string.  ``value`` is JSON where that
gives the same msgpack again, with integers of any size as numbers; else ``value_msgpack`` has the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

EXACT_INTEGER_MAX = 1 << 53

_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
_ABSENT = msgspec.Raw(b"")


class JsonRow(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An event as it is in a line of a file."""

    shard: int
    offset: int | str
    guid: str
    topic: str
    seq: int | str
    appended_ns: int | str
    table: str | None = None
    key: str | None = None
    action: str | None = None
    value: msgspec.Raw = _ABSENT
    value_msgpack: bytes | None = None
    version: int | str | None = None
    timestamp: int | str | None = None
    frame_count: int | None = None
    """Set in the first event of each frame, like all that follow."""
    frame_after: int | str | None = None
    frame_timestamp: int | str | None = None
    frame_flags: int | None = None
    frame_hmac: bytes | None = None
    frame: bytes | None = None


_NUMBERS = ("offset", "seq", "appended_ns", "version", "timestamp", "frame_after", "frame_timestamp")
_encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(JsonRow).decode


def encode_row(row: Mapping[str, Any]) -> bytes:
    """A row of a segment, column -> value, as a line without its end."""
    fields = dict(row)
    value = fields.pop("value")
    for name in _NUMBERS:
        number = fields[name]
        fields[name] = str(number) if number is not None and number > EXACT_INTEGER_MAX else number
    line = JsonRow(**fields | {"guid": row["guid"].hex()})
    if value is not None:
        _set_value(line, value)
    return _encode_line(line)


def _set_value(line: JsonRow, value: bytes) -> None:
    try:
        text = msgspec.json.encode(_unpack(value))
        if _pack(msgspec.json.decode(text)) == value:
            line.value = msgspec.Raw(text)
            return
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        pass  # it has something that JSON has not
    line.value_msgpack = value


def decode_row(line: bytes) -> dict[str, Any]:
    """What `encode_row` was given.  Raises msgspec.MsgspecError, ValueError."""
    found = _decode_line(line)
    row = {name: getattr(found, name) for name in JsonRow.__struct_fields__}
    for name in _NUMBERS:
        row[name] = None if row[name] is None else int(row[name])
    row["guid"] = bytes.fromhex(found.guid)
    packed = row.pop("value_msgpack")
    row["value"] = _pack(msgspec.json.decode(found.value)) if bytes(found.value) else packed
    return row
