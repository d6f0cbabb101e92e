"""Live frames as samples.  The values of events are never decoded: a sample keeps them as the bytes that were sent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from durability_service.core.sets.samples import Sample, sample_maker
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Action, Event, decode_event
from pubsub_api.core.frame import Header
from pubsub_api.core.receiving.instream import Delivery

LOG = logging.getLogger(__name__)

StreamRange = tuple[bytes, str, int, int]
"""GUID of the publisher, topic, first and last number."""


class _Key(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """An event without headers: what a sample is filed under, and the value as it was sent."""

    table: str
    key: str
    action: Action
    value: msgspec.Raw
    version: int
    timestamp: int


class _KeyWithHeaders(_Key, array_like=True, gc=False, forbid_unknown_fields=False):
    """An event with headers, which stay as they were sent."""

    headers: str


_decode_keys = msgspec.msgpack.Decoder(list[_Key]).decode
_decode_key = msgspec.msgpack.Decoder(_Key).decode
_decode_key_with_headers = msgspec.msgpack.Decoder(_KeyWithHeaders).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


_Filed = tuple[int, _Key]
"""Number of an event, and the event."""


class _Stream:
    """What came of one writer on one topic."""

    __slots__ = ("_last", "_newest", "all")

    def __init__(self) -> None:
        self.all: list[_Filed] = []
        """Events of a topic with a history."""
        self._newest: dict[tuple[str, str], _Filed] = {}
        self._last = 0

    def samples(self) -> Iterable[_Filed]:
        return self.all or self._newest.values()

    def keep_newest(self, first: int, keys: list[_Key]) -> int:
        """Of each object only the newest.  Per frame, while what was decoded is still in the processor's cache.
        Returns how many events were replaced by newer ones."""
        newest, last, before = self._newest, self._last, len(self._newest)
        for number, key in enumerate(keys, first):
            stamp = key.timestamp
            if stamp >= last:
                last = stamp
                newest[key.table, key.key] = (number, key)
            else:  # a program stamped events by hand
                self._keep((number, key))
        self._last = last
        return before + len(keys) - len(newest)

    def _keep(self, filed: _Filed) -> None:
        number, key = filed
        present = self._newest.get((key.table, key.key))
        if present is None or (key.timestamp, number) > (present[1].timestamp, present[0]):
            self._newest[key.table, key.key] = filed


class TakenSamples(NamedTuple):
    """What was recorded since the last time: the samples, and the numbers of the events they were made of."""

    samples: list[Sample]
    ranges: list[StreamRange]


class SampleRecorder:
    """Makes samples of frames that came together.  Thread-safe.

    Of an object of which only the newest is kept, only the newest among them becomes a sample: the others would be
    replaced at once, and in a flood they are most of the work.  So the longer frames are left here, while the disk is
    busy with those before, the less work they make; ``bytes_max`` says when that is enough.
    """

    def __init__(self, depth_of: Callable[[str], int], bytes_max: int) -> None:
        self._depth_of = depth_of
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, bytes], _Stream] = {}
        self._ranges: list[StreamRange] = []
        self._bytes = 0
        self.replaced = 0
        """Events that were replaced by newer ones before they were filed."""
        self.undecodable = 0
        """Frames that cannot be read."""

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Take the events of these frames that were not delivered before.  A frame that cannot be decoded is counted,
        and nothing is taken of it."""
        for frame, header, already in deliveries:
            try:
                keys = _keys(frames.body(frame, header))[already:]
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.undecodable += 1
                LOG.error("Durability: %r: events that cannot be decoded, nor kept: %s", header.topic, error)
                continue
            if keys:
                with self._lock:  # per frame: `take` is called under the service's lock and must not wait long
                    self._keep(frame, header, header.first + already, keys)

    def _keep(self, frame: bytes, header: Header, first: int, keys: list[_Key]) -> None:
        topic, writer = header.topic, header.guid
        stream = self._streams.get((topic, writer))
        if stream is None:
            stream = self._streams[topic, writer] = _Stream()
        if self._depth_of(topic) > 1:
            stream.all += enumerate(keys, first)
        else:
            self.replaced += stream.keep_newest(first, keys)
        self._ranges.append((writer, topic, first, header.last))
        self._bytes += len(frame)

    def take(self) -> TakenSamples:
        """What was recorded since the last call."""
        with self._lock:
            streams, self._streams = self._streams, {}
            ranges, self._ranges = self._ranges, []
            self._bytes = 0
        return TakenSamples(
            [sample for of, stream in streams.items() for sample in _samples(*of, stream.samples())], ranges
        )


def _keys(body: memoryview) -> list[_Key]:
    try:
        return _decode_keys(body)
    except msgspec.ValidationError:  # an event has headers, or is none
        return [_key(part) for part in _split(body)]


def _key(part: msgspec.Raw) -> _Key:
    try:
        return _decode_key(part)
    except msgspec.ValidationError:
        return _decode_key_with_headers(part)


def _samples(topic: str, writer: bytes, filed: Iterable[_Filed]) -> Iterable[Sample]:
    make = sample_maker(topic, writer)
    return [
        make(key.table, key.key, key.timestamp, number, key.action == "delete", _encode(key)) for number, key in filed
    ]


def event_of(sample: Sample) -> Event:
    """The event as it was published."""
    event = decode_event(sample.event)
    event.topic = sample.topic
    return event
