"""An event as a group delivers it, and how a shard is divided into streams.

A *stream* is what is assigned to members: a shard of the log, or one of the lanes that a shard is divided into.  Lanes
let more members work than the log has shards.  In a ``$shared`` group the lane of an event is decided by its topic and
key, so that their order is kept; in a ``$queue`` group by its place in the shard.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import Event

Mode = Literal["shared", "queue"]

STRIPE = 64
"""In a queue, this many neighbouring offsets belong to one lane: a small frame is then decoded by one member only."""


class GroupEvent(Event, array_like=True, kw_only=True, gc=False):
    """An event with its place in the log: what `ack` and `nack` need.  On the wire it is an `Event` like any other."""

    stream: int = 0
    offset: int = 0
    """Its offset in the shard of the log."""
    attempt: int = 1
    """Which delivery this is, as far as the group knows."""
    grant: int = 0
    """Fencing token: the number of the grant under which it was delivered.  Rises when the stream changes hands."""
    loan: int = 0
    """Which loan of this process it came from."""


class Place(NamedTuple):
    """What a stream is made of."""

    shard: int
    lane: int
    lanes: int

    @classmethod
    def of(cls, stream: int, lanes: int) -> Place:
        return cls(*divmod(stream, lanes), lanes)

    def owns(self, event: GroupEvent, mode: Mode) -> bool:
        """Whether an event of the shard belongs to this stream."""
        if self.lanes == 1:
            return True
        if mode == "queue":
            return event.offset // STRIPE % self.lanes == self.lane
        return zlib.crc32(f"{event.topic}\0{event.key}".encode()) % self.lanes == self.lane

    def may_own(self, start: int, end: int, mode: Mode) -> bool:
        """False when a whole range of offsets surely belongs to other lanes, so that it need not be decoded."""
        if self.lanes == 1 or mode == "shared":
            return True
        return any(stripe % self.lanes == self.lane for stripe in range(start // STRIPE, (end - 1) // STRIPE + 1))


_decode = msgspec.msgpack.Decoder(list[GroupEvent]).decode


class Origin(NamedTuple):
    """What the events of one loan have in common."""

    stream: int
    grant: int
    loan: int


def decode(frame: bytes, header: frames.Header, origin: Origin, *, skip: int, offset: int) -> list[GroupEvent]:
    """The events of a stored DATA frame that count, the first of them at ``offset``.  Raises UndecodableBody."""
    try:
        events = _decode(frames.body(frame, header))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"the events of topic {header.topic!r} cannot be decoded: {error}") from error
    if len(events) != header.count:
        raise UndecodableBody(f"the frame of topic {header.topic!r} states {header.count} events and has {len(events)}")
    if skip:
        del events[:skip]
    topic = header.topic
    stream, grant, loan = origin
    for event in events:
        event.topic = topic
        event.stream = stream
        event.offset = offset
        event.attempt = 1
        event.grant = grant
        event.loan = loan
        offset += 1
    return events
