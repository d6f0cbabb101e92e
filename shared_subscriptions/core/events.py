"""Events as a group delivers them, and how a shard is divided into partitions.

A *partition* is what is assigned to members: a shard of the log, or one of the lanes that a shard is divided into.
Lanes let more members work than the log has shards.  In a ``$shared`` group the lane of an event is decided by its
topic and key, so that their order is kept.  A ``$queue`` group has no lanes: what is assigned there are *portions*,
short ranges of a shard that exist until they are done, and are numbered apart from partitions.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple

import msgspec

from pubsub_api.core import frame as frames
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import GroupEvent
from pubsub_api.core.headers import read_headers

Mode = Literal["shared", "queue"]

_SHARD_BITS = 32
"""Shards times lanes are fewer than that, so every larger number is that of a portion."""


def portion_number(serial: int, shard: int) -> int:
    """``serial`` begins with 1."""
    return serial << _SHARD_BITS | shard


def is_portion(partition: int) -> bool:
    return partition >> _SHARD_BITS > 0


def lane_of(topic: str, key: str, lanes: int) -> int:
    """Where the events of a topic and key belong."""
    return zlib.crc32(f"{topic}\0{key}".encode()) % lanes


class PartitionPlace(NamedTuple):
    """What a partition is made of."""

    shard: int
    lane: int
    lanes: int

    @classmethod
    def of(cls, partition: int, lanes: int) -> PartitionPlace:
        if is_portion(partition):
            return cls(partition & ((1 << _SHARD_BITS) - 1), 0, 1)
        return cls(*divmod(partition, lanes), lanes)

    def owns(self, event: GroupEvent) -> bool:
        """Whether an event of the shard belongs to this partition."""
        return self.lanes == 1 or lane_of(event.topic, event.key, self.lanes) == self.lane


_decode = msgspec.msgpack.Decoder(list[GroupEvent], dec_hook=read_headers).decode


class LoanOrigin(NamedTuple):
    """What the events of one loan have in common."""

    partition: int
    grant: int
    loan: int


def decode(frame: bytes, header: frames.Header, origin: LoanOrigin, *, skip: int, offset: int) -> list[GroupEvent]:
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
    partition, grant, loan = origin
    for event in events:
        event.topic = topic
        event.stream = partition
        event.offset = offset
        event.attempt = 1
        event.grant = grant
        event.loan = loan
        offset += 1
    return events
