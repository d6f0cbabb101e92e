"""What the ZeroMQ driver puts on the wire besides frames: how filters become prefixes, and the subscription barrier.

A message has two parts: the topic with a NUL behind it, and the frame.  ZeroMQ can only match prefixes of the first
part; the NUL, which no topic contains, turns a prefix into an exact match: ``D`` with its NUL is no prefix of ``Dx``.

The barrier: ZeroMQ says nothing about when a subscription takes effect at the publisher.  Subscriptions of one link
arrive in the order they were made, so a subscriber subscribes last to a topic no other knows (``$sync/`` and a
nonce); the publisher, seeing this subscription, sends an echo on exactly that topic.  When the echo arrives, everything
subscribed to before is in effect.  The echo also says where the publisher answers queries.
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
    """The prefixes that together select every topic of the filter, and as few others as prefixes can.

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
    """Sixteen random bytes, new for every publisher object: a restart is seen even when the address stays."""
    serves: bool
    """Whether it answers queries."""
    query_port: int
    """Where, on the same host; 0 under the ipc transport, where the place follows from the publisher's own."""


def pack_echo(echo: Echo) -> bytes:
    return _ECHO.pack(_MAGIC, _VERSION, echo.publisher, echo.serves, echo.query_port)


def unpack_echo(payload: bytes) -> Echo | None:
    """None when the bytes are not an echo of this version."""
    if len(payload) != _ECHO.size:
        return None
    magic, version, publisher, serves, query_port = _ECHO.unpack(payload)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Echo(publisher, bool(serves), query_port)
