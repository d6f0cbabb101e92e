"""Headers of an event: a small map of text that travels with it, such as the context of a trace.

On the wire they are a seventh element of the event, a JSON object *as text*.  It is text because releases without
headers ignore a text in that place, and would refuse a map.  An event without headers has no seventh element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

HEADERS_MAX = 16
"""Headers of one event.  They are sent and kept with every event; data belongs into the value."""
HEADER_NAME_BYTES_MAX = 64
HEADERS_BYTES_MAX = 1024
"""All headers of an event as JSON.  Nearly twice the size of the context of a trace (W3C: a traceparent of 55 bytes, a
tracestate of 512), and less than what is reserved for the envelope of the largest event of a database."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


class Headers(dict[str, str]):
    """Headers of a received event.  Cannot be changed: all events without headers share one object."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the headers of an event cannot be changed: make a new event with other headers")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[type[Headers], tuple[dict[str, str]]]:
        return Headers, (dict(self),)


NO_HEADERS = Headers()

if TYPE_CHECKING:
    HeadersField = Mapping[str, str]
else:
    HeadersField = Headers  # a type that the decoder does not know, so that it calls `read_headers`


def read_headers(_: type, text: Any) -> Headers:
    """The ``dec_hook`` of decoders, for the headers of a received event.  Raises what decoders raise."""
    return Headers(_decode(text))


def write_headers(headers: Mapping[str, str]) -> str:
    """The wire form of headers.  Raises ValueError with the reason."""
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must be a mapping, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"{len(headers)} headers are more than {HEADERS_MAX}")
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str:
            raise ValueError(f"header {name!r}: name and value must be str, not {type(value).__name__}")
        if not 0 < len(name.encode()) <= HEADER_NAME_BYTES_MAX:
            raise ValueError(f"header {name!r}: a name has 1 to {HEADER_NAME_BYTES_MAX} bytes")
    text = _encode(dict(headers))
    if len(text) > HEADERS_BYTES_MAX:
        raise ValueError(f"headers of {len(text)} bytes are more than {HEADERS_BYTES_MAX}")
    return text.decode()
