"""Live events as samples: a subscriber that also tells who wrote an event, and which number it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from durability_service.core.samples import Sample, make_sample
from pubsub_api.core.events import Event
from pubsub_api.core.frame import Header
from pubsub_api.core.instream import Delivery
from pubsub_api.subscriber import Subscriber

_encode = msgspec.msgpack.Encoder().encode


class Batch(list[Event]):
    """The events of one frame that were not delivered before, with the frame's header."""

    header: Header
    first: int
    """Number of the first of them."""


class RecordingSubscriber(Subscriber):
    """Hands `Batch` objects to ``on_events``; everything else is as in any subscriber."""

    def _decode(self, delivery: Delivery) -> list[Event]:
        batch = Batch(super()._decode(delivery))
        _, batch.header, already = delivery
        batch.first = batch.header.first + already
        return batch


def samples_of(batch: Batch) -> list[Sample]:
    return list(_samples(batch, batch.header.guid, batch.first))


def _samples(events: Sequence[Event], writer: bytes, first: int) -> Iterator[Sample]:
    for number, event in enumerate(events, first):
        yield make_sample(
            event.topic,
            event.table,
            event.key,
            timestamp=event.timestamp,
            writer=writer,
            number=number,
            is_delete=event.action == "delete",
            event=_encode((event.table, event.key, event.action, event.value, event.version, event.timestamp)),
        )


_decode_event = msgspec.msgpack.Decoder(Event).decode


def event_of(sample: Sample) -> Event:
    """The event as it was published."""
    event = _decode_event(sample.event)
    event.topic = sample.topic
    return event
