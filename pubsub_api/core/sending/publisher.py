"""The sending half of the envelope: numbers events, announces heads, keeps frames for repair, answers queries.

Sans-IO: every call is given the time, returns the frames to send, and does nothing else.

Theory of operation
-------------------
Every topic a publisher uses is a *stream* of its own with dense numbers 1, 2, 3, ...; its *head* is the last number
used.  Subscribers find holes by number, so the only loss they cannot see by themselves is that of the newest frames.
Two kinds of HELLO close that:

* a **stream hello** on the stream's own topic states the head.  The first one goes out when the stream has been idle
  for ``max_idle_time``: it is what makes the loss of a last event visible, and there is at most one per burst of data.
  It is repeated at doubling intervals up to ``idle_time_limit_s``; all repeats together are held below
  ``hello_rate_max`` frames a second, however many streams are idle.
* a **publisher hello** on the control topic says every ``max_idle_time`` that the publisher lives.

Stream hellos travel the same way as the stream's data, so they reach exactly the subscribers that need them.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import LimitReached, NotPermitted
from pubsub_api.core.frame import DataPacker, Flag, Kind, topic_element
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.sending.replies import Found, Head, Responder, select
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.core.topics import CONTROL_TOPIC, check_topic

Outgoing = tuple[str, bytes]
"""Topic and frame."""

_EMPTY_HELLO = messages.encode(messages.Hello())
_ONE_HELLO = 1 - 1e-9
"""Of the budget, allowing for what rounding takes from a sum of parts."""
_NS_PER_S = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Predecessor:
    """A publisher's former life, when its end is known for certain: lets subscribers see that they lost nothing."""

    guid: bytes
    heads: Mapping[str, int]
    frames: Sequence[bytes] = ()
    """DATA frames of it, or of lives before it, that can still be had: they go into the cache."""
    former: Predecessor | None = None
    """The life before it."""

    def lives(self) -> Iterator[Predecessor]:
        """This one and those before it, the newest first."""
        life: Predecessor | None = self
        while life is not None:
            yield life
            life = life.former


class OutStream:
    """One stream as its publisher sees it.  ``pending`` holds encoded events that have no number yet."""

    __slots__ = ("element", "gap", "head", "hello_due", "hello_interval", "is_dirty", "last_data", "pending", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.element = topic_element(topic)
        self.head = 0
        self.gap = 0
        """How many numbers up to the head the transport refused: no subscriber has them.  The next frame says so."""
        self.pending: list[bytes] = []
        self.is_dirty = False
        """It is in its owner's list of streams that have something pending."""
        self.last_data = 0.0
        self.hello_interval = 0.0
        self.hello_due = 0.0
        """When the next hello is scheduled; 0 when none is."""


class PublisherCore:
    """Not thread-safe: the owner serialises calls, except that any thread may append to a stream's ``pending``."""

    def __init__(
        self,
        settings: PublisherSettings,
        *,
        guid: bytes,
        name: str,
        now: float,
        predecessor: Predecessor | None = None,
    ) -> None:
        self.settings = settings
        self.guid = guid
        self.name = name
        self.cache = FrameCache(settings.cache) if settings.cache else None
        self.streams: dict[str, OutStream] = {}
        self._barred: dict[str, tuple[float, OutStream]] = {}
        """Topic -> until when nothing is sent on it because that is not permitted, and its stream."""
        self._born = now
        self._stamp = 0
        """The highest timestamp of a frame so far."""
        self.events = 0
        self.frames = 0
        self.hellos = 0
        self._packer = DataPacker(guid, settings.frame.key)
        self._responder = Responder(
            guid=guid,
            name=name,
            is_publisher=True,
            frame=settings.frame,
            reply_bytes_max=settings.cache.reply_bytes_max if settings.cache else settings.batch_bytes_max,
        )
        self._predecessor = predecessor
        self._former_until = 0
        """The timestamp from which on former lives are not told any more."""
        if predecessor is not None and self.cache is not None:
            for frame in predecessor.frames:
                self.cache.store(
                    frames.unpack(frame, bytes_max=settings.frame.bytes_max, key=settings.frame.key), frame, now
                )
        self._first_hellos: list[tuple[float, str]] = []
        self._repeat_hellos: list[tuple[float, str]] = []
        self._heartbeat_due = now
        self._hello_budget = float(settings.hello_rate_max)
        self._budget_time = now

    def stream(self, topic: str) -> OutStream:
        """The stream of a topic, made when it is new.  Raises InvalidTopic, LimitReached, NotPermitted."""
        stream = self.streams.get(topic) if isinstance(topic, str) else None
        if stream is None:
            check_topic(topic)
            if topic in self._barred:
                raise NotPermitted(
                    f"topic {topic!r}: the access control of the transport does not let this program publish there; "
                    f"it is tried again {self.settings.max_idle_time_s:g} s after a refusal (max_idle_time)"
                )
            if len(self.streams) + len(self._barred) >= self.settings.streams_max:
                raise LimitReached(f"topic {topic!r} would be stream {len(self.streams) + 1}: streams_max is reached")
            stream = self.streams[topic] = OutStream(topic)
        return stream

    def start(self, now: float, stamp: int) -> list[Outgoing]:
        """The first hello: a new GUID, the name and, when they are known, the predecessor's final heads."""
        self._heartbeat_due = now + self.settings.max_idle_time_s
        # Former lives are told of for as long as subscribers remember one that vanished.
        self._former_until = stamp + int(self.settings.forget_time_s * _NS_PER_S)
        former = self._predecessor
        chunks = list(_chunks(former.heads)) if former else [{}]
        out = []
        for part, heads in enumerate(chunks):
            is_last = part == len(chunks) - 1
            hello = messages.Hello(
                name=self.name,
                predecessor=former.guid if former else b"",
                heads=heads,
                part=part,
                parts=len(chunks) if is_last else 0,
            )
            flags = Flag.START | (Flag.LAST if is_last else Flag.NONE)
            out.append(self._control(Kind.HELLO, messages.encode(hello), stamp, flags))
        return out

    def next_frame(self, stream: OutStream, now: float, stamp: int) -> bytes | None:
        """Number pending events of the stream, as many as one frame takes, and pack them; None when there are none."""
        # Callers append concurrently; slicing and deleting by count touches only what was there.
        encoded = stream.pending[: self.settings.batch_events_max]
        if not encoded:
            return None
        frame = self._pack(stream, encoded, stamp)
        if len(frame) > self.settings.batch_bytes_max and len(encoded) > 1:
            encoded = list(_upto_bytes(encoded, self.settings.batch_bytes_max))
            frame = self._pack(stream, encoded, stamp)
        del stream.pending[: len(encoded)]
        stream.head += len(encoded)
        stream.gap = 0
        self.keep(stream, frame, len(encoded), now, stamp)
        return frame

    def lone_frame(self, stream: OutStream, encoded: bytes, stamp: int) -> bytes:
        """Number and pack one event of a stream that has nothing pending.  The owner sends it, then calls `keep`."""
        self._stamp = stamp = max(stamp, self._stamp)  # as in `_in_order`
        head = stream.head
        frame = self._packer.pack_one(stream.element, encoded, head + 1, head - stream.gap, stamp)
        stream.head = head + 1
        stream.gap = 0
        return frame

    def refuse(self, frame: bytes, now: float) -> int:
        """The transport refused a frame for lack of permission: it is forgotten, and its topic barred for a while.

        Returns how many events that are, with those that were waiting to be sent on the topic.  Numbers are not used
        again: the next frame that is sent on the topic says which were skipped.
        """
        header = frames.unpack(frame, bytes_max=self.settings.frame.bytes_max)
        if header.kind != Kind.DATA:
            return 0
        if self.cache is not None:
            self.cache.discard((self.guid, header.topic), header.first)
        barred = self._barred.pop(header.topic, None)
        stream = self.streams.pop(header.topic, None) or (barred[1] if barred else None)
        if stream is None:
            return 0
        waiting = len(stream.pending)
        del stream.pending[:waiting]
        stream.gap = max(stream.gap, stream.head - header.after)
        stream.hello_due = stream.hello_interval = 0.0
        # Permissions change seldom: it is tried again as often as an idle publisher says that it lives.
        self._barred[header.topic] = (now + self.settings.max_idle_time_s, stream)
        return header.count + waiting

    def _unbar(self, now: float) -> None:
        """Let those topics be tried again whose time is over."""
        while self._barred:
            topic, (until, stream) = next(iter(self._barred.items()))
            if until > now:
                return
            del self._barred[topic]
            self.streams[topic] = stream

    def _pack(self, stream: OutStream, encoded: Sequence[bytes], stamp: int) -> bytes:
        return self._packer.pack(
            stream.element,
            encoded,
            first=stream.head + 1,
            after=stream.head - stream.gap,
            timestamp=self._in_order(stamp),
        )

    def _in_order(self, stamp: int) -> int:
        """The timestamp for a frame: no frame has a lower one than those made before it.

        Callers take timestamps before they get here, and may overtake each other.  Subscribers tell by the timestamps
        which of two frames was sent later.
        """
        if stamp < self._stamp:
            return self._stamp
        self._stamp = stamp
        return stamp

    def keep(self, stream: OutStream, frame: bytes, count: int, now: float, stamp: int) -> None:
        """Remember the stream's newest frame for repair, and to announce its head."""
        self.events += count
        self.frames += 1
        if self.cache is not None:
            self.cache.store_range((self.guid, stream.topic), stream.head - count + 1, stream.head, stamp, frame, now)
        stream.last_data = now
        if not stream.hello_due or stream.hello_interval:
            self._schedule_first_hello(stream, now + self.settings.max_idle_time_s)

    def _schedule_first_hello(self, stream: OutStream, due: float) -> None:
        stream.hello_interval = 0.0
        stream.hello_due = due
        heapq.heappush(self._first_hellos, (due, stream.topic))

    def poll(self, now: float, stamp: int) -> list[Outgoing]:
        """The hellos that are due."""
        self._unbar(now)
        out: list[Outgoing] = []
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self.settings.max_idle_time_s
            former = self._former(stamp)
            # Its heads are for those that ask; the GUID alone says which publisher this is, so that it is no stranger.
            hello = messages.Hello(name=self.name, predecessor=former[0].guid if former else b"")
            out.append(self._control(Kind.HELLO, messages.encode(hello), stamp, Flag.LAST))
        self._first(out, now, stamp)
        self._repeats(out, now, stamp)
        if self.cache is not None:
            self.cache.expire(now)
        return out

    def _first(self, out: list[Outgoing], now: float, stamp: int) -> None:
        while self._first_hellos and self._first_hellos[0][0] <= now:
            due, topic = heapq.heappop(self._first_hellos)
            stream = self.streams.get(topic)
            if stream is None or due != stream.hello_due:
                continue
            idle_since = stream.last_data + self.settings.max_idle_time_s
            if idle_since > now:
                self._schedule_first_hello(stream, idle_since)
            else:
                out.append(self._stream_hello(stream, stamp))
                self._schedule_repeat(stream, now)

    def _repeats(self, out: list[Outgoing], now: float, stamp: int) -> None:
        rate = self.settings.hello_rate_max
        self._hello_budget = min(rate, self._hello_budget + (now - self._budget_time) * rate)
        self._budget_time = now
        while self._repeat_hellos and self._repeat_hellos[0][0] <= now and self._hello_budget >= _ONE_HELLO:
            due, topic = heapq.heappop(self._repeat_hellos)
            stream = self.streams.get(topic)
            if stream is None or due != stream.hello_due or not stream.hello_interval:
                continue
            self._hello_budget -= 1
            out.append(self._stream_hello(stream, stamp))
            self._schedule_repeat(stream, now)

    def _schedule_repeat(self, stream: OutStream, now: float) -> None:
        interval = stream.hello_interval * 2 if stream.hello_interval else self.settings.max_idle_time_s
        stream.hello_interval = min(interval, self.settings.idle_time_limit_s)
        stream.hello_due = now + stream.hello_interval
        heapq.heappush(self._repeat_hellos, (stream.hello_due, stream.topic))

    def announce(self, now: float) -> None:
        """The link came back: subscribers may have missed anything, so every stream states its head again.

        The hellos come out of `poll`, below ``hello_rate_max``, the streams that were active last first.
        """
        self._heartbeat_due = now
        self._repeat_hellos.clear()
        newest_first = sorted(self.streams.values(), key=lambda stream: stream.last_data, reverse=True)
        for position, stream in enumerate(stream for stream in newest_first if stream.head > stream.gap):
            stream.hello_interval = self.settings.max_idle_time_s
            stream.hello_due = now + position / self.settings.hello_rate_max
            heapq.heappush(self._repeat_hellos, (stream.hello_due, stream.topic))

    def end(self, now: float, stamp: int) -> list[Outgoing]:
        """The last frames: what is pending of any stream, which was accepted and so gets its number, and the goodbye.

        Nothing may be numbered after this.
        """
        out: list[Outgoing] = []
        for stream in self.streams.values():
            while (frame := self.next_frame(stream, now, stamp)) is not None:
                out.append((stream.topic, frame))
        return out + self.bye(stamp)

    def bye(self, stamp: int) -> list[Outgoing]:
        """The goodbye: final heads of every stream."""
        chunks = list(_chunks(self.heads()))
        out = []
        for part, heads in enumerate(chunks):
            is_last = part == len(chunks) - 1
            bye = messages.Bye(name=self.name, heads=heads, part=part, parts=len(chunks) if is_last else 0)
            out.append(self._control(Kind.BYE, messages.encode(bye), stamp, Flag.LAST if is_last else Flag.NONE))
        return out

    def heads(self) -> dict[str, int]:
        """Topic -> number of its last event, for every stream that has any."""
        return {topic: stream.head - stream.gap for topic, stream in self.streams.items() if stream.head > stream.gap}

    def next_deadline(self) -> float:
        """When `poll` has something to do, at the latest."""
        due = self._heartbeat_due
        if self._first_hellos:
            due = min(due, self._first_hellos[0][0])
        if self._repeat_hellos:
            enough = self._budget_time + max(0.0, 1 - self._hello_budget) / self.settings.hello_rate_max
            due = min(due, max(self._repeat_hellos[0][0], enough))
        return due

    def known_heads(self, stamp: int) -> list[Head]:
        """Of every stream that has events, those of former lives included while they are told of."""
        told = [(self.guid, self.heads()), *((life.guid, life.heads) for life in self._former(stamp))]
        return [(guid, topic, head) for guid, heads in told for topic, head in heads.items()]

    def answer(
        self, query: messages.Query, stamp: int, now: float, heads: Sequence[Head] | None = None
    ) -> Iterator[bytes]:
        """Reply frames to a query.  What it needs of the publisher's state is read before this returns.

        ``heads`` are those of `known_heads` that the query selects, from an owner that has selected them already.
        """
        stamp = self._in_order(stamp)
        if heads is None:
            heads = select(self.known_heads(stamp), query.topics)
        return self._responder.pack(query.id, self._find(query, heads, stamp, now), stamp, query.scope)

    def _former(self, stamp: int) -> list[Predecessor]:
        """The former lives, the newest first, while they are told of."""
        is_told = self._predecessor is not None and stamp < self._former_until
        return list(self._predecessor.lives()) if is_told and self._predecessor else []

    def _find(self, query: messages.Query, heads: Sequence[Head], stamp: int, now: float) -> Found:
        if query.guid not in (b"", self.guid) or query.confirm:
            return Found()
        if query.wants:
            wanted = self.cache.want(query.wants) if self.cache else ()
            return Found(frames=wanted, heads=self._reached(query.wants), age=now - self._born)
        return Found(
            frames=self.cache.history(heads, query) if query.history and self.cache else (),
            heads=heads,
            former=[life.guid for life in self._former(stamp)],
            age=now - self._born,
        )

    def _reached(self, wants: Iterable[messages.Want]) -> list[Head]:
        """How far this publisher's streams are of which events are wanted: a higher number never was."""
        topics = dict.fromkeys(want.topic for want in wants if want.guid == self.guid)
        barred = {topic: stream for topic, (_, stream) in self._barred.items()} if self._barred else {}
        known = ((topic, self.streams.get(topic) or barred.get(topic)) for topic in topics)
        return [(self.guid, topic, stream.head if stream else 0) for topic, stream in known]

    def _stream_hello(self, stream: OutStream, stamp: int) -> Outgoing:
        self.hellos += 1
        hello = frames.pack(
            Kind.HELLO, self.guid, stream.topic, _EMPTY_HELLO, first=stream.head + 1, after=stream.head - stream.gap,
            timestamp=self._in_order(stamp), key=self.settings.frame.key,
        )  # fmt: skip
        return stream.topic, hello

    def _control(self, kind: Kind, body: bytes, stamp: int, flags: int) -> Outgoing:
        self.hellos += 1
        return CONTROL_TOPIC, frames.pack(
            kind, self.guid, CONTROL_TOPIC, body, timestamp=self._in_order(stamp), flags=flags,
            key=self.settings.frame.key,
        )  # fmt: skip


def _chunks(heads: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The heads in portions that fit a frame; one empty portion when there are none."""
    items = list(heads.items())
    for start in range(0, max(len(items), 1), messages.HEADS_PER_FRAME_MAX):
        yield dict(items[start : start + messages.HEADS_PER_FRAME_MAX])


def _upto_bytes(encoded: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """Events from the front while they fit, at least one."""
    total = 0
    for event in encoded:
        total += len(event)
        if total > bytes_max and total > len(event):
            return
        yield event
