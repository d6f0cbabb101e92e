"""The sending end: a gRPC server on the event loop of the process, around `core.publisher.LongpollPublisherCore`.

``send`` puts frames into mailboxes on the caller's thread, under a lock, and has the loop answer the waiting polls.
While the loop does that, further frames gather, so batching needs no timer.

``send`` waits for a subscriber whose mailbox is full, because repairing dropped frames costs far more than a pause.  It
waits ``send_wait`` at most, and then waits for no subscriber during `SEND_WAIT_INTERVAL_S`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from heliograph_drivers.pubsub.longpoll.channels import MESSAGE_BYTES_MAX
from heliograph_drivers.pubsub.longpoll.config import (
    LINGER_S,
    SEND_WAIT_INTERVAL_S,
    LongpollSettings,
    make_address,
)
from heliograph_drivers.pubsub.longpoll.core.publisher import LongpollPublisherCore
from heliograph_drivers.pubsub.longpoll.core.session import PublisherCounters
from heliograph_drivers.pubsub.longpoll.process import PROCESS, in_loop
from heliograph_drivers.pubsub.longpoll.service import Service
from pubsub_api.driver import PublisherReport
from pubsub_api.driver_kit import DriverPublisher, GuardedHandler, Tally
from pubsub_api.errors import Closed, LimitReached, UsageError

LOG = logging.getLogger(__name__)

FRAME_BYTES_MAX = MESSAGE_BYTES_MAX - 2**16
_PUBLISHER_BYTES = 16
_LOOP_TIMEOUT_S = 30.0
_COUNTED = (
    "sessions_dead", "refused", "unknown", "superseded", "repeated_commands", "events_coalesced", "events_dropped",
    "hellos_withheld", "resets", "frames_reset",
)  # fmt: skip
"""The counters of the core about something that was dropped, refused or repeated."""


class LongpollPublisher(DriverPublisher):
    """See `PublisherApi`."""

    def __init__(self, settings: LongpollSettings) -> None:
        self._core = LongpollPublisherCore(settings.publisher, secrets.token_bytes(_PUBLISHER_BYTES))
        self._room = threading.Condition()
        """The lock of this end, which guards the core.  Notified when a mailbox may have room again, or be empty."""
        super().__init__(
            make_address(settings.bind_host, settings.port),
            Tally("queries_refused", "requests_malformed", "requests_abandoned"),
            guard=PROCESS,
            lock=self._room,
        )
        self._settings = settings
        self._no_wait_until = 0.0
        self._service: Service | None = None

    def _open(self, report: PublisherReport) -> None:  # noqa: ARG002 - an address that is bound stays so
        service = Service(self._settings, self._core, self._room, PROCESS.enter(self), self._tally)
        try:
            self._address = in_loop(service.loop, service.start(), _LOOP_TIMEOUT_S)
        except BaseException:
            service.release()
            PROCESS.leave(self)
            raise
        self._service = service

    def send(self, topic: str, frame: bytes) -> None:
        self.send_many(((topic, frame),))

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        self._check_usable()
        service = self._service
        if service is None:
            raise UsageError("initialize() comes before send()")
        core = self._core
        with self._lock:
            for topic, frame in frames:
                if len(frame) > FRAME_BYTES_MAX:
                    raise LimitReached(f"a frame of {len(frame)} bytes is larger than gRPC carries: {FRAME_BYTES_MAX}")
                core.publish(topic, frame)
                if core.overfull:
                    self._wait_for_room(service)
            if core.has_ready:
                service.post_flush()

    def _wait_for_room(self, service: Service) -> None:
        """Wait for subscribers with a full mailbox; then reset those without room.  The caller holds the lock."""
        service.post_flush()
        now = time.monotonic()
        if now >= self._no_wait_until:
            if self._room.wait_for(lambda: not self._core.overfull, self._settings.send_wait_s):
                return
            self._no_wait_until = now + SEND_WAIT_INTERVAL_S
        for session in self._core.reset_overfull():
            LOG.warning(
                "%s: subscriber %s reads too slowly: its waiting frames are dropped, and it will repair or resync",
                self._address,
                session.id.hex(),
            )

    def _serve(self, handler: GuardedHandler) -> None:
        service = self._service
        if service is None:
            raise Closed(f"the publisher of {self._address} is closed")
        service.handler = handler

    @property
    def counters(self) -> Mapping[str, int]:
        """Reads every session."""
        counted = PublisherCounters()
        if not PROCESS.is_child:  # in a child the lock may be held for ever
            with self._lock:
                counted = self._core.counters()
        return self._tally.counts() | {name: getattr(counted, name) for name in _COUNTED}

    def _close(self) -> None:
        with self._lock:
            service, self._service = self._service, None
            if service is not None:
                service.post_flush()
                self._room.wait_for(lambda: not self._core.has_mail, LINGER_S)
        if service is not None:
            try:
                in_loop(service.loop, service.stop(), _LOOP_TIMEOUT_S)
            finally:
                service.release()
                PROCESS.leave(self)
