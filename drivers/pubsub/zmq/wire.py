"""The wire format of the ZeroMQ driver besides frames: prefixes for filters, and the subscription barrier.

A message has two parts: the topic with a NUL behind it, and the frame.  ZeroMQ only matches prefixes of the first part.
The NUL, which no topic contains, makes the match exact: ``D`` with its NUL is no prefix of ``Dx``.

The barrier: ZeroMQ does not report when a subscription takes effect at the publisher.  But the subscriptions of one
link arrive in order.  So a subscriber subscribes last to a topic that no other subscriber has (``$sync/`` and a nonce).
The publisher sees this subscription and sends an echo on exactly that topic.  When the echo arrives, all earlier
subscriptions are in effect.  The echo also says where the publisher answers queries.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pubsub_api.core import topics

NUL = b"\0"
SYNC = b"$sync/"
NONCE_BYTES = 16

_ECHO = struct.Struct(">4sB16sBH")
_MAGIC = b"HGSY"
_VERSION = 1


def subscription_prefixes(topic_filter: str) -> tuple[bytes, ...]:
    """The prefixes that together select every topic of the filter, and as few others as possible.

    Names that begin with ``$`` are taken literally.  Raises InvalidTopic.
    """
    if topic_filter.startswith("$"):
        return (topic_filter.encode() + NUL,)
    topics.check_filter(topic_filter)
    if not topics.is_wildcard(topic_filter):
        return (topic_filter.encode() + NUL,)
    literal = topics.literal_prefix(topic_filter).encode()
    if not literal:
        return (b"",)
    if topic_filter.endswith("#") and "+" not in topic_filter:
        return (literal + NUL, literal + b"/")
    return (literal + b"/",)


class Echo(NamedTuple):
    """The publisher's answer to a nonce."""

    publisher: bytes
    """Sixteen random bytes, new for every publisher object, so that a restart at the same address is detected."""
    serves: bool
    """Whether it answers queries."""
    query_port: int
    """The port for queries on the same host; 0 with the ipc transport, where `query_path` follows from the address."""


def pack_echo(echo: Echo) -> bytes:
    return _ECHO.pack(_MAGIC, _VERSION, echo.publisher, echo.serves, echo.query_port)


def unpack_echo(payload: bytes) -> Echo | None:
    """The echo in a payload; None when the bytes are no echo of this version."""
    if len(payload) != _ECHO.size:
        return None
    magic, version, publisher, serves, query_port = _ECHO.unpack(payload)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Echo(publisher, bool(serves), query_port)
