"""What workers and publisher service say to each other.

A message is four bytes of length, big-endian, and that many bytes of one msgpack array whose first element tells the
kind.  The length is checked before anything is decoded.

======= ========= ====================================================================================================
kind    from      fields
======= ========= ====================================================================================================
HELLO   worker    protocol version, GUID of the worker, number of its first unacknowledged batch, name, process id, how
                  many of its events it knows to be refused
WELCOME service   number of the last batch taken from that GUID, GUID of the service's publisher, largest event in
                  bytes; how many events in all batches taken could not be published, and why
BATCH   worker    number, then groups of topic and encoded events, in order
ACK     service   every batch up to this number is taken over; how many events in them could not be published, and why
BYE     worker    it ends, and everything of it is acknowledged or given up
REFUSED service   why it will not talk to this worker
======= ========= ====================================================================================================
"""

from __future__ import annotations

import struct
from typing import Union

import msgspec

from publisher_service.errors import MalformedMessage
from pubsub_api.core.topics import TOPIC_BYTES_MAX
from pubsub_api.runtime.sockets.messages import Splitter
from pubsub_api.runtime.sockets.messages import pack as pack_payload

VERSION = 1
GUID_BYTES = 16
NUMBER_MAX = 2**63 - 1

_SKEW = 4
"""A worker may have been started with limits so many times larger than those of the service."""
_MESSAGE_OVERHEAD_BYTES = 64
_EVENT_OVERHEAD_BYTES = 16
"""Of an event and of its topic in a batch, beside the bytes of both."""


def message_bytes_max(*, batch_events_max: int, batch_bytes_max: int, event_bytes_max: int) -> int:
    """The longest message that a service with these limits accepts: every batch that a worker makes with the same
    limits fits, and one event more that is as large as it may be."""
    topics_bytes = batch_events_max * (TOPIC_BYTES_MAX + _EVENT_OVERHEAD_BYTES)
    return _SKEW * (_MESSAGE_OVERHEAD_BYTES + topics_bytes + batch_bytes_max + event_bytes_max)


Group = tuple[str, list[bytes]]
"""A topic and encoded events of it."""


class WorkerHello(msgspec.Struct, array_like=True, tag=1):
    version: int
    guid: bytes
    first: int
    """The number of the first batch that was not acknowledged: that of the next one when all were."""
    name: str = ""
    pid: int = 0
    refused: int = 0
    """Events that the worker was told could not be published."""

    def __post_init__(self) -> None:
        if len(self.guid) != GUID_BYTES or not 1 <= self.first <= NUMBER_MAX:
            raise ValueError("a HELLO with an impossible GUID or number")


class Welcome(msgspec.Struct, array_like=True, tag=2):
    taken: int
    """The last batch taken from this worker, 0 when there was none or it is not known any more."""
    guid: bytes
    event_bytes_max: int
    refused: int | None = None
    """Events of all batches taken that could not be published, because of ``reason``.  None when it is not known."""
    reason: str = ""


class WorkerBatch(msgspec.Struct, array_like=True, tag=3):
    number: int
    groups: list[Group]


class Ack(msgspec.Struct, array_like=True, tag=4):
    number: int
    refused: int = 0
    """Events since the last ACK that were taken and cannot be published, because of ``reason``."""
    reason: str = ""


class WorkerBye(msgspec.Struct, array_like=True, tag=5):
    pass


class RefusalMessage(msgspec.Struct, array_like=True, tag=6):
    reason: str


FromWorker = Union[WorkerHello, WorkerBatch, WorkerBye]  # noqa: UP007  msgspec wants a real Union on Python 3.10 and later alike
FromService = Union[Welcome, Ack, RefusalMessage]  # noqa: UP007

_encode = msgspec.msgpack.Encoder().encode
_from_worker: msgspec.msgpack.Decoder[WorkerHello | WorkerBatch | WorkerBye] = msgspec.msgpack.Decoder(FromWorker)
_from_service: msgspec.msgpack.Decoder[Welcome | Ack | RefusalMessage] = msgspec.msgpack.Decoder(FromService)


def encode(message: WorkerHello | Welcome | WorkerBatch | Ack | WorkerBye | RefusalMessage) -> bytes:
    """The payload alone."""
    return _encode(message)


def pack(message: WorkerHello | Welcome | WorkerBatch | Ack | WorkerBye | RefusalMessage) -> bytes:
    """The bytes for the socket, length included."""
    return pack_payload(_encode(message))


_ACK = struct.Struct(">IBBBQBB")


def pack_ack(number: int) -> bytes:
    """The bytes of an ACK that tells of no refusal: the same for the other side, with less work."""
    return _ACK.pack(_ACK.size - 4, 0x94, 4, 0xCF, number, 0, 0xA0)  # an array of four: tag, uint 64, 0, ""


def read_from_worker(payload: bytes | memoryview) -> WorkerHello | WorkerBatch | WorkerBye:
    """Raises MalformedMessage."""
    try:
        return _from_worker.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{len(payload)} bytes are no message of a worker: {error}") from error


def read_from_service(payload: bytes | memoryview) -> Welcome | Ack | RefusalMessage:
    """Raises MalformedMessage."""
    try:
        return _from_service.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{len(payload)} bytes are no message of the publisher service: {error}") from error


class MessageReader(Splitter):
    """Cuts a stream of bytes into the payloads of messages.  `feed` raises MalformedMessage."""

    def __init__(self, message_bytes_max: int) -> None:
        super().__init__(message_bytes_max, _too_large)


def _too_large(problem: str) -> MalformedMessage:
    return MalformedMessage(f"{problem}: [pubsub] frame_bytes_max or batch_bytes_max may differ on the two sides")
