"""Live frames as samples.  The values of events are never decoded: a sample keeps them as the bytes that were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


_decode_keys = msgspec.msgpack.Decoder(list[_Key]).decode
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode


_Filed = tuple[int, _Key]
"""Number of an event, and the event."""


class _Stream:
    """What came of one writer on one topic."""

    __slots__ = ("_last", "_newest", "all", "replaced")

    def __init__(self) -> None:
        self.all: list[_Filed] = []
        """Events of a topic with a history."""
        self._newest: dict[tuple[str, str], _Filed] = {}
        self._last = 0
        self.replaced = 0

    def samples(self) -> Iterable[_Filed]:
        return self.all or self._newest.values()

    def keep_newest(self, first: int, keys: list[_Key]) -> None:
        """Of each object only the newest.  Per frame, while what was decoded is still in the processor's cache."""
        newest, last, before = self._newest, self._last, len(self._newest)
        for number, key in enumerate(keys, first):
            stamp = key.timestamp
            if stamp >= last:
                last = stamp
                newest[key.table, key.key] = (number, key)
            else:  # somebody stamped events by hand
                self._keep((number, key))
        self._last = last
        self.replaced += before + len(keys) - len(newest)

    def _keep(self, filed: _Filed) -> None:
        number, key = filed
        present = self._newest.get((key.table, key.key))
        if present is None or (key.timestamp, number) > (present[1].timestamp, present[0]):
            self._newest[key.table, key.key] = filed


class Recorder:
    """Makes samples of frames that came together.

    Of an object of which only the newest is kept, only the newest among them becomes a sample: the others would be
    replaced at once, and in a flood they are most of the work.
    """

    def __init__(self, depth_of: Callable[[str], int]) -> None:
        self._depth_of = depth_of
        self.replaced = 0
        """Events that were replaced by newer ones before they were filed."""
        self._streams: dict[tuple[str, bytes], _Stream] = {}

    def add(self, delivery: Delivery) -> None:
        """Take the events of a frame that were not delivered before.  Raises UndecodableBody, and takes none."""
        frame, header, already = delivery
        try:
            keys = _decode_keys(frames.body(frame, header))[already:]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableBody(f"the events of topic {header.topic!r} cannot be decoded: {error}") from error
        stream = self._streams.get((header.topic, header.guid))
        if stream is None:
            stream = self._streams[header.topic, header.guid] = _Stream()
        if self._depth_of(header.topic) > 1:
            stream.all += enumerate(keys, header.first + already)
        elif keys:
            stream.keep_newest(header.first + already, keys)

    def take(self) -> list[Sample]:
        """The samples of the frames added since the last call."""
        streams, self._streams = self._streams, {}
        self.replaced += sum(stream.replaced for stream in streams.values())
        return [
            _sample(topic, writer, number, key)
            for (topic, writer), stream in streams.items()
            for number, key in stream.samples()
        ]


def _sample(topic: str, writer: bytes, number: int, filed: _Key) -> Sample:
    return make_sample(
        topic,
        filed.table,
        filed.key,
        timestamp=filed.timestamp,
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
