"""Live frames as samples.  The values of events are never decoded: a sample keeps them as the bytes that were sent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from durability_service.core.samples import InstanceKey, Sample, make_sample
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


_decode_keys = msgspec.msgpack.Decoder(list[_Key]).decode
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode


_Found = tuple[tuple[int, bytes, int], _Key]
"""Order and key of an event."""


class Recorder:
    """Makes samples of frames that came together.

    Of an object of which only the newest is kept, only the newest among them becomes a sample: the others would be
    replaced at once, and in a flood they are most of the work.
    """

    def __init__(self, depth_of: Callable[[str], int]) -> None:
        self._depth_of = depth_of
        self.replaced = 0
        """Events that were replaced by newer ones before they were filed."""
        self._newest: dict[InstanceKey, _Found] = {}
        self._samples: list[Sample] = []

    def add(self, delivery: Delivery) -> None:
        """Take the events of a frame that were not delivered before.  Raises UndecodableBody, and takes none."""
        frame, header, already = delivery
        try:
            keys = _decode_keys(frames.body(frame, header))[already:]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableBody(f"the events of topic {header.topic!r} cannot be decoded: {error}") from error
        topic, writer = header.topic, header.guid
        keeps_one = self._depth_of(topic) == 1
        for number, key in enumerate(keys, header.first + already):
            found = ((key.timestamp, writer, number), key)
            if not keeps_one:
                self._samples.append(_sample(topic, found))
                continue
            instance = (topic, key.table, key.key)
            present = self._newest.get(instance)
            if present is not None:
                self.replaced += 1
            if present is None or found[0] > present[0]:
                self._newest[instance] = found

    def take(self) -> list[Sample]:
        """The samples of the frames added since the last call."""
        samples, self._samples = self._samples, []
        newest, self._newest = self._newest, {}
        samples += [_sample(instance[0], found) for instance, found in newest.items()]
        return samples


def _sample(topic: str, found: _Found) -> Sample:
    (timestamp, writer, number), filed = found
    return make_sample(
        topic,
        filed.table,
        filed.key,
        timestamp=timestamp,
        writer=writer,
        number=number,
        is_delete=filed.action == "delete",
        event=_encode(filed),
    )


def event_of(sample: Sample) -> Event:
    """The event as it was published."""
    event = _decode_event(sample.event)
    event.topic = sample.topic
    return event
