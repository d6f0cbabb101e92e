"""Live frames as samples.  The values of events are never decoded: a sample keeps the bytes that were sent."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from durability_service.core.samples import Sample, make_sample
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import Action, Event
from pubsub_api.core.instream import Delivery


class _Key(msgspec.Struct, array_like=True, gc=False):
    """Of an event, what a sample is filed under."""

    table: str
    key: str
    action: Action
    value: msgspec.Raw
    version: int
    timestamp: int


_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_key = msgspec.msgpack.Decoder(_Key).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode


def samples_of(delivery: Delivery) -> list[Sample]:
    """The events of a frame that were not delivered before.  Raises UndecodableBody."""
    frame, header, already = delivery
    try:
        events = _split(frames.body(frame, header))
        return list(_samples(events[already:], header.topic, header.guid, header.first + already))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableBody(f"the events of topic {header.topic!r} cannot be decoded: {error}") from error


def _samples(events: list[msgspec.Raw], topic: str, writer: bytes, first: int) -> Iterator[Sample]:
    for number, raw in enumerate(events, first):
        filed = _decode_key(raw)
        yield make_sample(
            topic,
            filed.table,
            filed.key,
            timestamp=filed.timestamp,
            writer=writer,
            number=number,
            is_delete=filed.action == "delete",
            event=bytes(raw),
        )


def event_of(sample: Sample) -> Event:
    """The event as it was published."""
    event = _decode_event(sample.event)
    event.topic = sample.topic
    return event
