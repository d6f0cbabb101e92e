"""Makes numbered frames of real events, and reads a log back to compare."""

from __future__ import annotations

import collections
import os
from typing import Any, NamedTuple

from durable_log.log_api import LogApi, StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind

_START_NS = 1_700_000_000_000_000_000


class Source:
    """A publisher that sends nothing: it only makes the frames, numbered per topic like real ones."""

    def __init__(self, guid: bytes | None = None, *, key: bytes | None = None) -> None:
        self.guid = os.urandom(frames.GUID_BYTES) if guid is None else guid
        self._key = key
        self._last: collections.Counter[str] = collections.Counter()

    def frame(self, topic: str, count: int = 1, *, lose: int = 0, skip: int = 0, value: Any = None) -> bytes:
        """The next frame of a topic.

        ``lose`` numbers before it were sent and will never be seen, unless `again` makes them; ``skip`` numbers before
        it were skipped on purpose.
        """
        after = self._last[topic] + lose
        first = after + skip + 1
        self._last[topic] = first + count - 1
        return self.again(topic, first, count, after=after, value=value)

    def again(self, topic: str, first: int, count: int, *, after: int | None = None, value: Any = None) -> bytes:
        """The frame with these numbers, framed as asked for.  Equal numbers have equal events."""
        encoded = [encode_event(event_of(topic, number, value), 1) for number in range(first, first + count)]
        return frames.pack(
            Kind.DATA, self.guid, topic, pack_body(encoded), first=first, after=first - 1 if after is None else after,
            count=count, timestamp=_START_NS + first, key=self._key,
        )  # fmt: skip


def event_of(topic: str, number: int, value: Any = None) -> Event:
    """The event that a `Source` sends under a number."""
    return Event(
        topic=topic, table=f"table{number % 3}", key=f"k{number % 7}",
        action=("create", "set", "delete")[number % 3],
        value={"n": number} if value is None else value, version=number, timestamp=_START_NS + number,
    )  # fmt: skip


class LoggedEvent(NamedTuple):
    """An event and everything that the log says about it."""

    offset: int
    guid: bytes
    number: int
    event: Event


def events_of(stored: StoredFrame) -> list[LoggedEvent]:
    header = stored.header()
    first = header.first + stored.skipped
    return [
        LoggedEvent(stored.offset + position, header.guid, first + position, event)
        for position, event in enumerate(stored.events())
    ]


def read_frames(log: LogApi, shard: int, offset: int | None = None, **limits: int) -> list[StoredFrame]:
    """All frames of a shard from an offset on, its start unless told, read in portions."""
    offset = log.state()[shard].start if offset is None else offset
    found: list[StoredFrame] = []
    while portion := log.read(shard, offset, **limits):
        found += portion
        offset = portion[-1].end
    return found


def read_events(log: LogApi, shard: int | None = None) -> list[LoggedEvent]:
    """All events of a shard, or of all shards one after the other."""
    shards = range(log.shards) if shard is None else [shard]
    return [event for number in shards for stored in read_frames(log, number) for event in events_of(stored)]


def numbers(log: LogApi, guid: bytes, topic: str) -> list[int]:
    """The numbers of a stream in the order in which the log has them."""
    return [one.number for one in read_events(log) if (one.guid, one.event.topic) == (guid, topic)]


def check_consistent(log: LogApi) -> None:
    """Assert what is true of every log that was not compacted, whatever happened to it.

    Offsets are dense, no event is there twice, and what streams say is what is stored, as far as nothing was trimmed.
    """
    for state in log.state():
        events = read_events(log, state.shard)
        assert [one.offset for one in events] == list(range(state.start, state.end))
        held = collections.defaultdict(list)
        for one in events:
            held[one.guid, one.event.topic].append(one.number)
            expected = event_of(one.event.topic, one.number)
            assert (one.event.key, one.event.version) == (expected.key, expected.version)
        streams = {(one.guid, one.topic): one for one in log.streams(state.shard)}
        assert set(held) <= set(streams)
        for key, stored in held.items():
            assert len(stored) == len(set(stored)), f"{key} has events twice"
            if state.start == 0:
                missing = {number for low, high in streams[key].missing for number in range(low, high + 1)}
                assert max(stored) == streams[key].last
                assert not missing & set(stored)
