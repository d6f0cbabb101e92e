"""The stored form of a value: msgpack of a typed struct, and one error for bytes that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pubsub_api.core.errors import UndecodableBody

T = TypeVar("T")

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


def decoder(kind: type[T], what: str) -> Callable[[bytes], T]:
    """What decodes values of a kind, of which errors speak as ``what``.  It raises UndecodableBody."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def checked(value: bytes) -> T:
        try:
            return decode(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UndecodableBody(f"{what} cannot be decoded: {error}") from error

    return checked
