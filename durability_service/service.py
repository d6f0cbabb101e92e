"""The durability service: the core with a bus, a store and a clock.

Every thread that calls the core holds the service's lock.

- The bus's threads deliver live events, messages of peers and questions of clients, and call the core with them.
- The loop thread sends what the core wants sent, and calls the core when its next deadline is reached.
- The store writer's thread writes, and reports to the core what is durable.
- The watchdog's thread renews the lease file while the loop and the store writer make progress.

While the disk is behind by `_LAG_MAX` operations, the thread that delivers live events blocks, so memory stays bounded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence

from oslo_config import cfg

from durability_service import config
from durability_service.core.effects import (
    AcknowledgeRange,
    Effect,
    Event,
    Level,
    LiveLost,
    NameTaken,
    Received,
    Send,
    Stored,
    StoreSamples,
    Terminate,
    Tick,
    Trace,
)
from durability_service.core.messages import Message
from durability_service.core.service import DurabilityCore
from durability_service.errors import DurabilityError, NameInUse, NoAligner, StoreFailed
from durability_service.protocol import ServiceStatus
from durability_service.serving import answers
from durability_service.serving.actions import Actions
from durability_service.serving.durable_ranges import DurableRanges
from durability_service.serving.live_events import LiveEvents
from durability_service.serving.peer_messages import PeerBus
from durability_service.serving.questions import ServiceQuestions
from durability_service.serving.tracing import Tracer
from durability_service.serving.watchdog import Watchdog
from durability_service.storage.store import SampleStore
from durability_service.storage.writer import StoreWriter
from pubsub_api import Session, Subscriber, loading
from pubsub_api import settings as pubsub_settings
from pubsub_api.config import reply_bytes_max
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import Closed, UndecodableBody
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import Resync
from pubsub_api.driver import PubSubApi
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_LAG_MAX = 200
"""Operations that are queued for the store.  Each may be as large as `config.GATHER_BYTES_MAX`."""
_IDLE_S = 60.0


class DurabilityService(Closeable):
    """A running durability service, until `close`.  Any thread may call.

    The constructor opens the driver and the store, and raises what these and reading the configuration raise.
    ``publishers`` replaces the configured addresses of publishers, ``peers`` those in ``[durability] fellows``.
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
        frame = pubsub_settings.frame_settings(conf)
        topics = config.control_topics(conf)
        admin_key = config.admin_key(conf)
        store = SampleStore(options.store) if options.store else None
        try:
            node, incarnation = _identity(options.node, store)
            self.settings = config.service_settings(conf, node=node, incarnation=incarnation)
            self._tracer = Tracer(Level[options.tracing_verbosity], options.tracing_file, node)
            restored = store.restored(self.settings.buckets) if store else {}
            self._core = DurabilityCore(self.settings, restored, time.monotonic(), store)
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
        self._loop_ran_at = time.monotonic()
        self.ranges = DurableRanges(config.CONFIRMED_STREAMS_MAX)
        self._live = LiveEvents(self.ranges, self.settings.rules.depth_of, self._core.keeps)
        self._writer = self._open_writer(store)
        self._actions = Actions(self._step, self._writer, options.snapshot_directory)
        guid = os.urandom(frames.GUID_BYTES)
        self._questions = ServiceQuestions(
            self._core, self._lock, self.ranges, self._actions,
            step=self._step, catch_up=self._feed_recorded, status=self.status, on_unreadable=self._on_unreadable,
            has_failed=lambda: self._is_store_lost,
            frame=frame, guid=guid, reply_bytes_max=reply_bytes_max(conf), admin_key=admin_key,
        )  # fmt: skip
        self._bus = PeerBus(
            self._driver, topics, frame, guid=guid,
            addresses=self._peer_addresses() if peers is None else peers,
            on_message=lambda message: self._step(Received(message)),
            answer=self._questions.answer,
        )  # fmt: skip
        self._session = Session(conf, self._driver)
        self._subscriber = self._subscribe(publishers)
        self._bus.start()
        self._loop = threading.Thread(target=self._run, name="heliograph-durability", daemon=True)
        self._loop.start()
        self._watchdog = Watchdog(
            {"the service": lambda: self._loop_ran_at, "the store": self._writer_moved_at},
            lease_file=options.lease_file,
            interval_s=config.WATCHDOG_INTERVAL_S,
            timeout_s=config.WATCHDOG_TIMEOUT_S,
        )

    def _peer_addresses(self) -> list[str]:
        """The addresses of the peers themselves, or that of the broker or router."""
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
        return self._session.frames(
            filters or [config.CONTROL_TOPICS],  # a placeholder until name-spaces are learned from peers
            self._on_frames,
            on_resync=self._on_resync,
            takes_repeats=True,  # a publisher that confirms sends again what the subscriber has given up
            addresses=publishers,
            past="all",
        )

    # -- what the user calls

    @property
    def address(self) -> str:
        """The address at which peers and clients reach this service on a bind-based driver."""
        return self._bus.address

    @property
    def node(self) -> str:
        return self.settings.node

    def listen_to(self, *, publisher: str = "", peer: str = "") -> None:
        """Add the address of a publisher or of a peer."""
        if publisher:
            self._subscriber.listen_to(publisher)
        if peer:
            self._bus.listen_to(peer)

    def status(self) -> ServiceStatus:
        with self._lock:
            return answers.service_status(
                self._core, lag=self._lag(), counters=self._counters(), actions=dict(self._actions.outcomes)
            )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the service has ended; False after ``timeout_s``.

        Raises StoreFailed, NoAligner or NameInUse if that is why it ended.
        """
        is_ended = self._ended.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return is_ended

    def close(self) -> None:
        """Announce the end to the peers, write what is queued, end every thread.  Blocks until then.  Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._subscriber.close()
        self._feed_recorded()
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
            if self._is_store_lost:
                return  # the step that failed may have left the core in an inconsistent state
            try:
                effects = self._core.step(time.monotonic(), time.time_ns(), event)
            except (StoreFailed, UndecodableBody) as error:
                self._on_unreadable(error)
                return
            for effect in effects:
                self._perform(effect)
            is_due = self._core.next_deadline() <= time.monotonic() or not self._outgoing.empty()
        if is_due:
            self._wakeup.set()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._outgoing.put(effect.message)
        elif isinstance(effect, StoreSamples):
            assert self._writer is not None, "data is persisted only where there is a store"
            self._writer.put(effect)
        elif isinstance(effect, AcknowledgeRange):
            self._live.acknowledged(effect.token)
        elif isinstance(effect, Trace):
            self._tracer.write(effect)
        elif isinstance(effect, NameTaken):
            self._on_failure(NameInUse(effect.reason))

    def _run(self) -> None:
        filters = {one for space in self.settings.name_spaces for one in space.filters}
        while True:
            self._loop_ran_at = time.monotonic()
            self._wakeup.clear()
            self._send_all()
            if self._is_closed:
                return
            if self._is_store_lost:
                self._wakeup.wait(_IDLE_S)
                continue
            self._note_recovered_events()
            with self._lock:
                missing = self._live.take_missing(time.monotonic())
                deadline = min(self._core.next_deadline(), self._live.next_deadline())
                leaderless = self._core.without_aligner() if self._options.require_aligner else []
                known = {one for keeper in self._core.keepers.values() for one in keeper.holding.space.filters}
            if leaderless and self._failure is None:
                self._on_failure(
                    NoAligner(f"no service may lead {', '.join(leaderless)}: see master_priority and aligner")
                )
            with contextlib.suppress(Closed):  # `close` may close the subscriber at any time
                if missing:
                    self._subscriber.ask_again(missing)
                for topic_filter in sorted(known - filters):
                    self._subscriber.subscribe(topic_filter)
                    filters.add(topic_filter)
            if time.monotonic() >= deadline:
                self._step(Tick())
            elif self._outgoing.empty():
                self._wakeup.wait(min(deadline - time.monotonic(), _IDLE_S) if deadline > time.monotonic() else 0)

    def _note_recovered_events(self) -> None:
        """Have readers read again if events were recovered that were missing in what they have read."""
        with self._lock:
            if self._live.take_recovered() and self._questions.is_read:
                self._step(LiveLost(is_read=True))

    def _send_all(self) -> None:
        while not self._outgoing.empty():
            self._bus.send(self._outgoing.get())

    # -- live events

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        """Called by the subscriber's dispatcher, from one thread."""
        if self._writer and self._writer.lag >= _LAG_MAX:
            self._writer.wait_room(_LAG_MAX, config.WATCHDOG_TIMEOUT_S)
        with self._lock:
            news = self._live.news(deliveries)
        is_full = self._live.record(news)
        if self._writer is None or not self._writer.lag or is_full:
            self._feed_recorded()

    def _feed_recorded(self) -> None:
        """Give the core what was recorded, and return when all of it is in the sets."""
        self._feed()
        while self._core.is_filing and self._failure is None:
            self._step(Tick())  # in many steps, so that other threads get the lock while buckets are read from disk

    def _feed(self) -> None:
        """Give the core what was recorded.

        While the disk is busy, events stay in the recorder, where newer ones replace them at little cost.  The writer's
        thread calls this after each transaction.
        """
        with self._lock:
            live = self._live.take()
            if live is not None:
                self._step(live)

    def _on_resync(self, resync: Resync) -> None:
        with self._lock:
            is_lost = self._live.lost(resync.lost, time.monotonic())
            self._step(LiveLost(is_read=self._questions.is_read, is_sure=is_lost))
        self._wakeup.set()

    # -- the store

    def _on_stored(self, operation: int) -> None:
        self._step(Stored(operation))
        self._feed()
        with self._lock:
            self._actions.stored(operation)

    def _on_snapshot(self, number: int, outcome: str) -> None:
        with self._lock:
            self._actions.outcomes[str(number)] = outcome

    def _on_unreadable(self, error: Exception) -> None:
        """Part of a set cannot be read from the store: the service fails."""
        LOG.error("Durability: the store cannot be read: %s", error)
        self._on_failure(error if isinstance(error, StoreFailed) else StoreFailed(f"{self._options.store}: {error}"))

    def _on_failure(self, error: DurabilityError) -> None:
        self._failure = error
        self._ended.set()

    @property
    def _is_store_lost(self) -> bool:
        """From then on the core is not called and no question is answered, until the program closes the service."""
        return isinstance(self._failure, StoreFailed)

    def _writer_moved_at(self) -> float | None:
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
            "bad_frames": bus.bad_frames + self._questions.bad,
            "transactions": self._writer.transactions if self._writer else 0,
            "traces_failed": self._tracer.failed,
            "buckets_read": self._core.memory.reads,
            "hot_bytes": self._core.memory.rows_bytes + self._core.memory.changes_bytes,
            **self._questions.counters(),
            **self._live.counters(),
        }


def _identity(node: str, store: SampleStore | None) -> tuple[str, int]:
    """Name and incarnation: from the store if there is one, otherwise new."""
    if store is not None:
        name, incarnation = store.start_life(node)
        return (name, incarnation) if name else store.start_life(f"{config.default_node()}-{os.urandom(4).hex()}")
    return node or f"{config.default_node()}-{os.getpid()}", time.time_ns() // 1_000_000


__all__ = ["DurabilityError", "DurabilityService"]
