"""Two cores on a table: publishers and one subscriber, wired by hand, with a clock that a test turns.

Nothing moves unless a test moves it: `Rig.publish` returns frames, `Rig.deliver` hands them over, `Rig.run` lets time
pass.  Queries are answered at once by whoever is in ``responders``, unless a test takes them away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.events import Event, decode_events, encode_event
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.core.receiving.subscriber import SubscriberCore
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.sending.publisher import Predecessor, PublisherCore
from pubsub_api.core.sending.replies import Responder, find
from pubsub_api.core.settings import CacheSettings, FrameSettings, History, PublisherSettings, SubscriberSettings

PUBLISHER = PublisherSettings(max_idle_time_s=5.0, idle_time_limit_s=40.0)
SUBSCRIBER = SubscriberSettings(
    max_idle_time_s=5.0,
    message_delay_window_s=0.2,
    silence_timeout_s=15.0,
    forget_time_s=300.0,
    ready_timeout_s=1.0,
    resync_jitter_s=0.0,
    resync_interval_min_s=0.0,
    repair_timeout_s=0.5,
    repair_attempts_max=3,
)
NO_REPAIR = dataclasses.replace(SUBSCRIBER, repair=False)
ADDRESS = "link"
FRAME = FrameSettings()

Answerer = Callable[[messages.Query], Iterable[bytes]]


def guid_of(number: int) -> bytes:
    return number.to_bytes(frames.GUID_BYTES, "big")


def header_of(frame: bytes) -> frames.Header:
    return frames.unpack(frame, bytes_max=FRAME.bytes_max)


class Rig:
    """A subscriber core and what surrounds it."""

    def __init__(
        self,
        *filters: str,
        settings: SubscriberSettings = SUBSCRIBER,
        history: History | None = None,
        takes_repeats: bool = False,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now = 1000.0
        self.subscriber = SubscriberCore(
            dataclasses.replace(settings, history=history, takes_repeats=takes_repeats),
            filters or ("#",),
            guid=guid_of(2**100),
            now=self.now,
            jitter=jitter,
        )
        self.publishers: list[PublisherCore] = []
        """Those that live."""
        self._lives = 0
        self.responders: list[Answerer] = []
        self.knows_responders = True
        self.received: list[tuple[str, int]] = []
        """Topic and number of every event the consumer got."""
        self.resyncs: list[Resync] = []
        self.told: list[tuple[str, int] | Resync] = []
        """Both, in the order in which the consumer saw them."""
        self.queries: list[messages.Query] = []

    # -- publishers

    def publisher(
        self,
        name: str = "host",
        *,
        settings: PublisherSettings = PUBLISHER,
        predecessor: Predecessor | None = None,
        is_heard: bool = True,
        is_asked: bool = True,
        age_s: float = 0.0,
    ) -> PublisherCore:
        """A publisher of that age; its first hello arrives when ``is_heard``, and it answers when ``is_asked``."""
        self._lives += 1
        core = PublisherCore(
            settings, guid=guid_of(self._lives), name=name, now=self.now - age_s, predecessor=predecessor
        )
        self.publishers.append(core)
        if is_asked:
            self.responders.append(lambda query: core.answer(query, self.stamp, self.now))
        first_hello = [frame for _, frame in core.start(self.now, self.stamp)]
        if is_heard:
            self.deliver(*first_hello)
        return core

    def publish(self, core: PublisherCore, topic: str, count: int = 1) -> list[bytes]:
        """Publish events, one frame each; returns the frames."""
        stream = core.stream(topic)
        made = []
        for _ in range(count):
            stream.pending.append(event_bytes(stream.head + 1, self.stamp))
            made += list(drain(core, topic, self.now, self.stamp))
        return made

    def cache(self, *kept: bytes, settings: CacheSettings | None = None) -> FrameCache:
        """A stand-alone cache that holds the frames and answers queries."""
        cache = FrameCache(settings or CacheSettings())
        for frame in kept:
            cache.store(header_of(frame), frame, self.now)
        responder = Responder(
            guid=guid_of(1000 + len(self.responders)),
            name="cache",
            is_publisher=False,
            frame=FRAME,
            reply_bytes_max=CacheSettings().reply_bytes_max,
        )
        self.responders.append(lambda query: responder.pack(query.id, find(cache, query), self.stamp, query.scope))
        return cache

    # -- what happens

    @property
    def stamp(self) -> int:
        return int(self.now * 1e9)

    def deliver(self, *arrived: bytes) -> None:
        self.subscriber.on_frames(arrived, self.now)
        self.settle()

    def connect(self, address: str = ADDRESS, arrivals: str = "") -> None:
        self.subscriber.link_up(address, self.now, arrivals)
        self.settle()

    def disconnect(self, address: str = ADDRESS) -> None:
        self.subscriber.link_down(address)

    def join(self) -> None:
        """Connect and become ready."""
        self.connect()
        self.run(SUBSCRIBER.ready_timeout_s)
        assert self.subscriber.is_ready

    def run(self, seconds: float, *, hellos: bool = True) -> None:
        """Let time pass, with everybody woken when they ask for it; hellos arrive unless told otherwise."""
        end = self.now + seconds
        while True:
            due = min([core.next_deadline() for core in self.publishers] + [self.subscriber.next_deadline()])
            if due > end:
                break
            self.now = max(due, self.now + 0.001)
            for core in self.publishers:
                said = [frame for _, frame in core.poll(self.now, self.stamp)]
                if hellos and said:
                    self.deliver(*said)
            self.subscriber.poll(self.now)
            self.settle()
        self.now = end
        self.subscriber.poll(self.now)
        self.settle()

    def settle(self) -> None:
        """Take what the core has for the consumer and the network, until there is no more."""
        while True:
            out, queries = self.subscriber.take()
            if not out and not queries:
                return
            for item in out:
                if isinstance(item, Resync):
                    self.resyncs.append(item)
                    self.told.append(item)
                else:
                    frame, header, already = item
                    for event in decode_events(frame, header, skip=already):
                        self.received.append((event.topic, event.value))
                        self.told.append((event.topic, event.value))
            for query in queries:
                self._ask(query)

    def _ask(self, query: messages.Query) -> None:
        self.queries.append(query)
        answers = [reply for answer in self.responders for reply in answer(query)]
        self.subscriber.asked(query.id, len(self.responders) if self.knows_responders else None, self.now)
        self.subscriber.on_frames(answers, self.now)

    def fill_queue(self) -> None:
        """The next frame in order is the last for which the consumer's queue has room."""
        self.subscriber.room.bytes_left = 0.0

    def make_room(self, room_bytes: float, *, is_half_empty: bool = True) -> None:
        """The consumer takes something from its full queue."""
        self.subscriber.room.make_room(room_bytes, is_half_empty=is_half_empty)
        self.settle()

    # -- what to look at

    def numbers(self, topic: str) -> list[int]:
        return [number for got, number in self.received if got == topic]

    @property
    def reasons(self) -> list[str]:
        return [resync.reason.value for resync in self.resyncs]

    @property
    def counters(self) -> dict[str, object]:
        """All of them by their last names."""
        found = dataclasses.asdict(self.subscriber.counters)
        return found | found["intake"] | found["repair"] | found["peers"]

    def forget_told(self) -> None:
        """Begin a new page: only what happens from now on is looked at."""
        self.received.clear()
        self.resyncs.clear()
        self.told.clear()
        self.queries.clear()


def event_bytes(number: int, stamp: int) -> bytes:
    return encode_event(Event(table="t", key="k", action="set", value=number, version=number), stamp)


def drain(core: PublisherCore, topic: str, now: float, stamp: int) -> Iterator[bytes]:
    """All frames that a stream has to send."""
    stream = core.stream(topic)
    while (frame := core.next_frame(stream, now, stamp)) is not None:
        yield frame
