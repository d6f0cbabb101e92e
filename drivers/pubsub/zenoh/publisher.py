"""The sending end, and the threads that answer queries.

In peer and router mode a publisher listens and needs no thread to send.  In client mode a connection thread waits for
the router.  Zenoh's own threads never send: they also empty the queues for which a sender waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import zenoh

from heliograph_drivers.pubsub.zenoh import config
from heliograph_drivers.pubsub.zenoh.config import ZenohSettings
from heliograph_drivers.pubsub.zenoh.connection import COUNTED, ZenohConnection
from heliograph_drivers.pubsub.zenoh.session import PROCESS, STUCK_S, ZenohSession, brief, listen, within_limit
from pubsub_api.core.scopes import SCOPES_MAX, group
from pubsub_api.driver import Connected, Disconnected, PublisherReport
from pubsub_api.driver_kit import DriverPublisher, GuardedHandler, Tally, join_thread, start_thread
from pubsub_api.errors import TransportUnavailable, UsageError
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_CONGESTION = zenoh.CongestionControl.DROP
"""A frame that a link does not take within ``send_wait`` is dropped for that link, and repaired later.  Closing the
link instead would cost a slow subscriber a resync."""
DECLARE_AFTER = 3
"""Frames on a topic before a Zenoh publisher is declared for it: for one frame it would not be worth its cost."""

if TYPE_CHECKING:
    Questions = zenoh.Queryable[zenoh.handlers.Handler[zenoh.Query]]


class Router(ZenohConnection):
    """The link of a publisher in client mode."""

    def __init__(
        self, settings: ZenohSettings, on_open: Callable[[ZenohSession], None], report: PublisherReport, tally: Tally
    ) -> None:
        super().__init__(settings, settings.endpoints, {}, tally)
        self._on_open = on_open
        self._report = report
        self.is_up = threading.Event()

    def _on_opened(self, session: ZenohSession) -> None:
        self._on_open(session)

    def _on_link_up(self) -> None:
        self.is_up.set()
        self._report(Connected(self.address))

    def _on_link_down(self, reason: str) -> None:
        self.is_up.clear()
        self._report(Disconnected(self.address, reason))


class Sender:
    """Hands frames to a session, through declared publishers while there are few topics.

    Measured per frame on one machine: 1 us through a declared publisher; 4 us by key with few filters, and 0.15 us more
    for every filter in the network and every declared publisher of the process, because Zenoh compares the key with all
    of them.  Declaring costs 0.05 us for each publisher that is declared already.  So all topics are declared, or none.
    """

    def __init__(self, session: ZenohSession, settings: ZenohSettings) -> None:
        self._session = session
        self._key = settings.keys.data
        self._declared: dict[str, zenoh.Publisher] = {}
        self._sent: dict[str, int] | None = {}
        """How often undeclared topics were used; None when there are too many topics to declare any."""

    def send(self, topic: str, frame: bytes) -> None:
        """Send a frame.  Raises InvalidTopic, zenoh.ZError."""
        publisher = self._declared.get(topic)
        if publisher is not None:
            publisher.put(frame)
            return
        self._session.zenoh.put(self._key(topic), frame, congestion_control=_CONGESTION)
        if self._sent is not None:
            self._count(self._sent, topic)

    def _count(self, sent: dict[str, int], topic: str) -> None:
        sent[topic] = sent.get(topic, 0) + 1
        if len(sent) + len(self._declared) > config.DECLARED_MAX:
            self._sent = None
            while self._declared:
                self._session.undeclare(self._declared.popitem()[1])
        elif sent[topic] >= DECLARE_AFTER:
            del sent[topic]
            self._declared[topic] = self._session.keep(
                self._session.zenoh.declare_publisher(self._key(topic), congestion_control=_CONGESTION)
            )


class ZenohPublisher(DriverPublisher):
    """See `PublisherApi`."""

    def __init__(self, settings: ZenohSettings) -> None:
        address = (settings.listen if settings.is_bind_based else settings.endpoints)[0]
        super().__init__(address, Tally(*COUNTED, "not_queries", "replies_dropped"), guard=PROCESS)
        self._settings = settings
        self._session: ZenohSession | None = None
        self._router: Router | None = None
        self._sender: Sender | None = None
        self._log_garbage = RateLimitedLog(LOG)
        self._answerers: list[threading.Thread] = []

    def _open(self, report: PublisherReport) -> None:
        PROCESS.ends.add(self)
        if self._settings.is_bind_based:
            session, self._address = within_limit(lambda: listen(self._settings), "opening a session")
            try:
                self._prepare(session)
            except BaseException:
                session.close()
                PROCESS.ends.discard(self)
                raise
            self._session = session
            return
        self._router = Router(self._settings, self._prepare, report, self._tally)
        self._router.start()
        self._router.is_up.wait(self._settings.common.connect_timeout)

    def _prepare(self, session: ZenohSession) -> None:
        """Begin to answer: sync queries of subscribers at once, questions as soon as there is a handler."""
        keys = self._settings.keys
        self._start_answering(session, keys.sync, self._confirm)
        # Overlapping scopes are merged: a publisher with two of them would answer a question twice.
        for scope in group(((scope, scope) for scope in self._settings.answer_scopes), SCOPES_MAX):
            self._start_answering(session, keys.ask(scope), self._answer)
        self._sender = Sender(session, self._settings)

    def _start_answering(self, session: ZenohSession, key: str, answer: Callable[[zenoh.Query], None]) -> None:
        # A ring drops the oldest query when the handler is too slow.  A full queue would block the thread that receives
        # everything else.
        ring: zenoh.handlers.RingChannel[zenoh.Query]
        ring = zenoh.handlers.RingChannel(config.QUERIES_MAX)
        questions = session.keep(session.zenoh.declare_queryable(key, ring))
        thread = threading.Thread(target=self._answer_all, args=(questions, answer), name="zenoh answers", daemon=True)
        start_thread(thread)
        self._answerers.append(thread)

    def send(self, topic: str, frame: bytes) -> None:
        self.send_many(((topic, frame),))

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        self._check_usable()
        sender = self._sender
        if sender is None or (self._router is not None and not self._router.is_up.is_set()):
            self._refuse()
        assert sender is not None
        try:
            for topic, frame in frames:
                sender.send(topic, frame)
        except zenoh.ZError as error:
            self._check_usable()  # another thread may have closed it meanwhile
            raise TransportUnavailable(f"zenoh did not take a frame: {brief(error)}") from error

    def _refuse(self) -> None:
        self._check_usable()  # another thread may have closed it meanwhile
        if self._router is None:
            raise UsageError("initialize() comes before send()")
        raise TransportUnavailable(f"the router at {self._address} is not connected")

    def _serve(self, handler: GuardedHandler) -> None:
        """Does nothing: the threads that answer have started already, and read the attribute."""

    def _close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()
        if self._router is not None:
            self._router.stop()
            self._router.join()
        if threading.current_thread() not in self._answerers:
            for thread in self._answerers:
                join_thread(thread, STUCK_S)
        self._sender = None  # its declared publishers would keep the session's shared memory
        PROCESS.ends.discard(self)

    def _answer_all(self, questions: Questions, answer: Callable[[zenoh.Query], None]) -> None:
        while True:
            try:
                query = questions.recv()
            except zenoh.ZError:  # the session is closed
                return
            with query:  # the end of the block tells the asker that the answer is complete
                try:
                    answer(query)
                except zenoh.ZError as error:
                    self._tally.add("replies_dropped")
                    LOG.debug("an answer could not be sent: %s", brief(error))

    def _confirm(self, query: zenoh.Query) -> None:
        query.reply(self._settings.keys.sync, b"")

    def _answer(self, query: zenoh.Query) -> None:
        question = b"" if query.payload is None else query.payload.to_bytes()
        if not self._settings.keys.is_asked_in_place(str(query.key_expr), question):
            self._tally.add("not_queries")
            self._log_garbage("zenoh: %d bytes at %s are no question of that scope", len(question), query.key_expr)
        elif self._handler is not None:
            for reply in self._handler(question):
                query.reply(query.key_expr, reply)
