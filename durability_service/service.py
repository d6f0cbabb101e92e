"""The durability service: the core, with a bus, a store and time.

Threads: the bus's threads bring live events and messages of peers and run the core under one lock; the loop sends
what is to be sent and runs the core when time has passed; the store writer writes; the watchdog watches both.  Live
events wait when the disk is behind, so that nothing piles up in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from oslo_config import cfg

from durability_service import config, protocol
from durability_service.core.effects import (
    AcknowledgeRange,
    DeleteHistory,
    Effect,
    Event,
    Interest,
    Level,
    Live,
    LiveLost,
    NameTaken,
    Received,
    Send,
    Stored,
    Terminate,
    Tick,
    Trace,
)
from durability_service.core.effects import (
    StoreSamples as StoreEffect,
)
from durability_service.core.messages import Message
from durability_service.core.namespaces import intersect
from durability_service.core.service import DurabilityCore
from durability_service.errors import DurabilityError, NameInUse, NoAligner
from durability_service.protocol import Answer, Ask, ServiceStatus
from durability_service.serving import answers
from durability_service.serving.administration import Administration
from durability_service.serving.durable_ranges import DurableRanges
from durability_service.serving.peer_messages import PeerBus
from durability_service.serving.sampling import SampleRecorder, StreamRange
from durability_service.serving.tracing import Tracer
from durability_service.serving.watchdog import Watchdog
from durability_service.storage.store import SampleStore
from durability_service.storage.writer import StoreWriter
from durable_log.core.holes import Holes
from pubsub_api import Session, Subscriber, loading
from pubsub_api import settings as pubsub_settings
from pubsub_api.config import reply_bytes_max
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import Closed, FrameError, InvalidTopic
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.core.replies import Found, Responder
from pubsub_api.core.settings import History
from pubsub_api.driver import PubSubApi
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_ACTIONS_MAX = 1000
_TOKENS_MAX = 1_000_000
_PAGE_BYTES = 256 * 1024
_LAG_MAX = 200
"""Operations that the store has not done yet: each may hold as much as is gathered at a time."""
_IDLE_S = 60.0


class DurabilityService(Closeable):
    """One service.  Raises what opening a driver, a store and the configuration may raise.

    ``publishers`` replaces the addresses of publishers of the configuration; ``peers`` those of ``[durability]``.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        driver: PubSubApi | None = None,
        publishers: Sequence[str] | None = None,
        peers: Sequence[str] | None = None,
    ) -> None:
        self._driver = driver or loading.build_driver(conf)
        config.register(conf)
        options = self._options = conf[config.GROUP]
        self._frame = pubsub_settings.frame_settings(conf)
        topics = config.control_topics(conf)
        self._administration = Administration(config.admin_key(conf))
        store = SampleStore(options.store) if options.store else None
        try:
            node, incarnation = _identity(options.node, store)
            self.settings = config.service_settings(conf, node=node, incarnation=incarnation)
            self._tracer = Tracer(Level[options.tracing_verbosity], options.tracing_file, node)
            self._core = DurabilityCore(self.settings, store.restored() if store else {}, time.monotonic())
        except BaseException:
            if store:
                store.close()
            raise
        self._lock = threading.RLock()
        self._outgoing: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wakeup = threading.Event()
        self._is_closed = False
        self._failure: DurabilityError | None = None
        self._ended = threading.Event()
        self._looked_at = time.monotonic()
        self._token = 0
        self._tokens: OrderedDict[int, list[StreamRange]] = OrderedDict()
        self._recorder = SampleRecorder(self.settings.rules.depth_of, config.GATHER_BYTES_MAX)
        self.ranges = DurableRanges(config.CONFIRMED_STREAMS_MAX)
        self._missing = Holes(
            ranges_max=config.MISSING_RANGES_MAX,
            interval_s=config.ASK_AGAIN_INTERVAL_S,
            attempts_max=config.ASK_AGAIN_ATTEMPTS_MAX,
        )
        self._recovered = 0
        self._actions: OrderedDict[str, str] = OrderedDict()
        self._waiting_actions: list[tuple[int, str]] = []
        self._questions = self._bad_questions = 0
        self._is_read = False
        """Somebody was given history."""
        self._writer = self._open_writer(store)
        self._bus = PeerBus(
            self._driver,
            topics,
            self._frame,
            addresses=self._peer_addresses() if peers is None else peers,
            on_message=lambda message: self._step(Received(message)),
            answer=self._answer,
        )
        self._responder = Responder(
            guid=self._bus.guid,
            name=node,
            is_publisher=False,
            frame=self._frame,
            reply_bytes_max=reply_bytes_max(conf),
        )
        self._session = Session(conf, self._driver)
        self._subscriber = self._subscribe(publishers)
        self._bus.start()
        self._loop = threading.Thread(target=self._run, name="heliograph-durability", daemon=True)
        self._loop.start()
        self._watchdog = Watchdog(
            {"the service": lambda: self._looked_at, "the store": self._store_moved},
            lease_file=options.lease_file,
            interval_s=config.WATCHDOG_INTERVAL_S,
            timeout_s=config.WATCHDOG_TIMEOUT_S,
        )

    def _peer_addresses(self) -> list[str]:
        """Where peers are heard: at their own addresses, or where everybody is."""
        if self._driver.capabilities.bind_based:
            return list(self._options.fellows)
        return self._driver.listen_addresses()

    def _open_writer(self, store: SampleStore | None) -> StoreWriter | None:
        if store is None:
            return None
        return StoreWriter(
            store,
            self._options.snapshot_directory,
            on_stored=self._on_stored,
            on_snapshot=self._on_snapshot,
            on_failure=self._on_failure,
        )

    def _subscribe(self, publishers: Sequence[str] | None) -> Subscriber:
        filters = sorted({one for space in self.settings.name_spaces for one in space.filters})
        return self._session.subscriber(
            filters or [config.CONTROL_TOPICS],  # name-spaces may be learned from peers
            on_frames=self._on_frames,
            on_resync=self._on_resync,
            takes_repeats=True,  # of what was given up, and then sent again by a publisher that wants to be sure
            addresses=publishers,
            history=History(),
        )

    # -- what the user calls

    @property
    def address(self) -> str:
        """Where peers and clients reach this service on a bind-based driver."""
        return self._bus.address

    @property
    def node(self) -> str:
        return self.settings.node

    def listen_to(self, *, publisher: str = "", peer: str = "") -> None:
        """Hear a further publisher or peer."""
        if publisher:
            self._subscriber.listen_to(publisher)
        if peer:
            self._bus.listen_to(peer)

    def status(self) -> ServiceStatus:
        with self._lock:
            return answers.service_status(
                self._core, lag=self._lag(), counters=self._counters(), actions=dict(self._actions)
            )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the service has ended by itself; False when the time is over.

        Raises StoreFailed, NoAligner, NameInUse.
        """
        is_ended = self._ended.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return is_ended

    def close(self) -> None:
        """Say good-bye, write what is queued, end every thread.  Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._subscriber.close()
        self._file()
        self._step(Terminate())
        self._wakeup.set()
        self._loop.join()
        self._bus.close()
        self._watchdog.close()
        if self._writer:
            self._writer.close(config.TERMINATE_PERIOD_S)
        self._tracer.close()
        self._ended.set()

    # -- the core

    def _step(self, event: Event) -> None:
        with self._lock:
            for effect in self._core.step(time.monotonic(), time.time_ns(), event):
                self._perform(effect)
            is_due = self._core.next_deadline() <= time.monotonic() or not self._outgoing.empty()
        if is_due:
            self._wakeup.set()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._outgoing.put(effect.message)
        elif isinstance(effect, StoreEffect):
            assert self._writer is not None, "data is persisted only where there is a store"
            self._writer.put(effect)
        elif isinstance(effect, AcknowledgeRange):
            for guid, topic, first, last in self._tokens.pop(effect.token, ()):
                self.ranges.add((guid, topic), first, last)
        elif isinstance(effect, Trace):
            self._tracer.write(effect)
        elif isinstance(effect, NameTaken):
            self._on_failure(NameInUse(effect.reason))

    def _run(self) -> None:
        filters = {one for space in self.settings.name_spaces for one in space.filters}
        while True:
            self._looked_at = time.monotonic()
            self._wakeup.clear()
            self._send_all()
            if self._is_closed:
                return
            self._look_for_late_events()
            with self._lock:
                missing = self._missing.take_due(self.ranges.missing_of, time.monotonic())
                self._missing.given_up.clear()  # which are counted
                deadline = min(self._core.next_deadline(), self._missing.next_deadline())
                leaderless = self._core.without_aligner() if self._options.require_aligner else []
                known = {one for keeper in self._core.keepers.values() for one in keeper.holding.space.filters}
            if leaderless and self._failure is None:
                self._on_failure(NoAligner(f"nobody may lead {', '.join(leaderless)}: see master_priority and aligner"))
            with contextlib.suppress(Closed):  # when the service is closed meanwhile
                if missing:
                    self._subscriber.ask_again(missing)
                for topic_filter in sorted(known - filters):
                    self._subscriber.subscribe(topic_filter)
                    filters.add(topic_filter)
            if time.monotonic() >= deadline:
                self._step(Tick())
            elif self._outgoing.empty():
                self._wakeup.wait(min(deadline - time.monotonic(), _IDLE_S) if deadline > time.monotonic() else 0)

    def _look_for_late_events(self) -> None:
        """What was recovered after the bus had given it up is later than what readers were given."""
        with self._lock:
            is_recovered = self._is_read and self._missing.recovered_ranges > self._recovered
            self._recovered = self._missing.recovered_ranges
            if is_recovered:
                self._step(LiveLost(is_read=True))

    def _send_all(self) -> None:
        while not self._outgoing.empty():
            self._bus.send(self._outgoing.get())

    # -- live events

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        """From the subscriber's one dispatcher."""
        if self._writer and self._writer.lag >= _LAG_MAX:
            self._writer.wait_room(_LAG_MAX, config.WATCHDOG_TIMEOUT_S)
        self._recorder.add(self._news(deliveries))
        if self._writer is None or not self._writer.lag or self._recorder.is_full:
            self._file()

    def _file(self) -> None:
        """Give the core what was recorded.

        While the disk is busy events stay with the recorder, where newer ones replace them at little cost; when it is
        done, the writer's thread files what came meanwhile.
        """
        with self._lock:
            samples, ranges = self._recorder.take()
            if not samples:
                return
            self._token += 1
            self._tokens[self._token] = ranges
            if len(self._tokens) > _TOKENS_MAX:
                self._tokens.popitem(last=False)
            self._step(Live(samples, self._token))

    def _news(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that are to be kept and are not durable yet: frames come again when somebody else missed them."""
        with self._lock:
            kept = {topic for topic in {header.topic for _, header, _ in deliveries} if self._core.keeps(topic)}
            return [
                delivery
                for delivery in deliveries
                if (header := delivery[1]).topic in kept
                and not self.ranges.has((header.guid, header.topic), header.first + delivery[2], header.last)
            ]

    def _on_resync(self, resync: Resync) -> None:
        with self._lock:
            lost = [one for one in resync.lost if self._core.keeps(one.topic)]
            self._missing.add(lost, time.monotonic())
            self._step(LiveLost(is_read=self._is_read, is_sure=bool(lost)))
        self._wakeup.set()

    # -- the store

    def _on_stored(self, operation: int) -> None:
        self._step(Stored(operation))
        self._file()
        with self._lock:
            for number, action in self._waiting_actions:
                if number <= operation:
                    self._actions[action] = "done"
            self._waiting_actions = [one for one in self._waiting_actions if one[0] > operation]

    def _on_snapshot(self, number: int, outcome: str) -> None:
        with self._lock:
            self._actions[str(number)] = outcome

    def _on_failure(self, error: DurabilityError) -> None:
        self._failure = error
        self._ended.set()

    def _store_moved(self) -> float | None:
        return self._writer.moved_at if self._writer and self._writer.lag else None

    def _lag(self) -> int:
        return self._writer.lag if self._writer else 0

    def _counters(self) -> dict[str, int]:
        bus = self._bus
        return {
            "messages_sent": bus.sent,
            "bytes_sent": bus.sent_bytes,
            "messages_unsent": bus.unsent,
            "messages_received": bus.received,
            "bad_frames": bus.bad_frames + self._bad_questions,
            "questions": self._questions,
            "administration_refused": self._administration.refused,
            "undecodable_frames": self._recorder.undecodable,
            "replaced_at_once": self._recorder.replaced,
            "transactions": self._writer.transactions if self._writer else 0,
            "streams_confirmed": len(self.ranges),
            "streams_forgotten": self.ranges.forgotten,
            "ranges_missing": len(self._missing),
            "ranges_recovered": self._missing.recovered_ranges,
            "ranges_forgotten": self._missing.forgotten_ranges,
            "traces_failed": self._tracer.failed,
        }

    # -- questions

    def _answer(self, frame: bytes) -> Iterable[bytes]:
        """A query came: of a client of ours, of a publisher that wants to be sure, or of a subscriber."""
        try:
            header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
            ask = protocol.unpack_ask(frame, header)
        except (FrameError, InvalidTopic) as error:
            self._bad_questions += 1
            LOG.warning("Durability: refused a question: %s", error)
            return ()
        with self._lock:
            self._questions += 1
            if not ask.durability:
                held = self._held(ask)
                durable = [position for position in held if self._core.keeps_fully(ask.wants[position].topic)]
                return self._responder.pack(ask.id, Found(held=held, durable=durable), time.time_ns(), ask.scope)
            is_for_us = ask.domain == self.settings.domain and ask.to in ("", self.node)
            answer = Answer(id=ask.id, responder=self.node, parts=1)
            if is_for_us:
                self._fill_in(answer, ask)
        return (protocol.pack_answer(answer, self._bus.guid, time.time_ns(), self._frame.key),)

    def _held(self, ask: Ask) -> list[int]:
        if not ask.confirm:
            return []
        return [
            position
            for position, want in enumerate(ask.wants)
            if self.ranges.has((want.guid, want.topic), want.first, want.last)
        ]

    def _fill_in(self, answer: Answer, ask: Ask) -> None:
        self._file()  # whoever asks is told of all that has come
        if ask.wants_data:
            self._wake(ask.topics)
        if ask.durability == protocol.HISTORY:
            answer.page = answers.page(self._core, ask, _PAGE_BYTES, time.time_ns())
            self._is_read = True
            return
        if ask.durability == protocol.DIGESTS:
            answer.page = answers.digests(self._core, ask)
            return
        if ask.durability in (protocol.DELETE, protocol.SNAPSHOT) and str(ask.action) not in self._actions:
            answer.refused = self._administration.admit(ask, self.node, time.monotonic())
            if not answer.refused:
                self._act(ask)
        answer.status = self.status()
        answer.challenge = self._administration.challenge(time.monotonic())

    def _wake(self, filters: Sequence[str]) -> None:
        """Somebody wants to read: LAZY name-spaces that hold such topics are fetched now."""
        wanted = [
            name
            for name, keeper in self._core.keepers.items()
            if not keeper.holding.is_wanted
            and any(intersect(one, own) for one in filters for own in keeper.holding.space.filters)
        ]
        if wanted:
            self._step(Interest(wanted))

    def _act(self, ask: Ask) -> None:
        action = str(ask.action)
        if len(self._actions) >= _ACTIONS_MAX:
            self._actions.popitem(last=False)
        self._actions[action] = ""
        if ask.durability == protocol.DELETE:
            self._step(DeleteHistory(ask.topics))
            if self._writer and self._writer.lag:
                self._waiting_actions.append((self._writer.queued, action))
            else:
                self._actions[action] = "done"
        elif self._writer is None or not self._options.snapshot_directory:
            self._actions[action] = "failed: this service has no [durability] store or no snapshot_directory"
        else:
            self._writer.snapshot(ask.action, ask.topics or ["#"])


def _identity(node: str, store: SampleStore | None) -> tuple[str, int]:
    """Name and incarnation: from the store where there is one, else new."""
    if store is not None:
        name, incarnation = store.start_life(node)
        return (name, incarnation) if name else store.start_life(f"{config.default_node()}-{os.urandom(4).hex()}")
    return node or f"{config.default_node()}-{os.getpid()}", time.time_ns() // 1_000_000


__all__ = ["DurabilityError", "DurabilityService"]
