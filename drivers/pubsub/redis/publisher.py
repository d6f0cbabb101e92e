"""The sending end of the Redis driver.

``send`` writes to the socket on the calling thread and does not wait for the answer: answers are collected before the
next frame and, when none follows, by the keeper.  The keeper is a thread that connects, notices that the server has
gone or is silent, and makes all reports after the first; it alone opens and closes connections, and it uses the open
one only under the lock.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import threading
import time
from collections.abc import Mapping, Sequence

from drivers.pubsub.redis import channels
from drivers.pubsub.redis.config import Settings
from drivers.pubsub.redis.link import COUNTED, Link, Message
from drivers.pubsub.redis.resp import ServerError
from drivers.pubsub.redis.wire import Backoff, Waker, Wire, join_thread
from pubsub_api.core.frame import is_frame
from pubsub_api.counting import Tally
from pubsub_api.driver import Connected, Disconnected, LinkReport, PublisherApi, PublisherReport, QueryHandler
from pubsub_api.errors import Closed, Forked, HeliographError, TransportUnavailable, UsageError
from pubsub_api.guarding import GuardedHandler

LOG = logging.getLogger(__name__)

WRITE_BYTES_MAX = 1024 * 1024
"""Frames are joined into one write up to about this size."""
BUSY_TICK_S = 0.25
"""How often the keeper looks for answers while frames are being sent."""
TOPICS_MAX = 65_536
"""Topics whose commands are kept ready up to the payload."""

_HANGUP = getattr(select, "POLLRDHUP", 0)  # where there is none, the tick notices the end of the connection


def _publish_head(prefix: bytes, topic: str) -> bytes:
    return channels.publish_head(channels.channel_of(prefix, topic))


class RedisPublisher(PublisherApi):
    """See the module's description."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._report: PublisherReport | None = None
        self._tally = Tally(*COUNTED, "frames_refused", "frames_unconfirmed", "not_queries", "report_errors")
        self._responder: Responder | None = None
        self._head = functools.lru_cache(TOPICS_MAX)(functools.partial(_publish_head, settings.channel_prefix))
        # The keeper's own, after initialize.
        self._keeper = threading.Thread(target=self._keep, name=f"redis-keeper-{settings.address}", daemon=True)
        self._waker: Waker | None = None
        self._backoff = Backoff(settings)
        self._reported: LinkReport | None = None
        self._sent_before = 0
        # Guarded by the lock.
        self._lock = threading.Lock()
        self._is_closed = False
        self._wire: Wire | None = None
        self._lost_wire: Wire | None = None
        self._down_reason = "not connected yet"
        self._refusal: ServerError | None = None
        self._logged_refusal = ""
        self._sent = 0
        self._unanswered = 0
        self._asked_at = self._heard_at = 0.0

    def initialize(self, report: PublisherReport) -> None:
        """Try to connect once, here, and go on trying on the keeper's thread.  Blocks for about ``connect_timeout``."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise self._unavailable()
            if self._report is not None:
                raise UsageError("initialize was called already")
            self._report = report
            self._waker = Waker()
        self._connect()
        self._keeper.start()

    @property
    def address(self) -> str:
        return self._settings.address

    def send(self, topic: str, frame: bytes) -> None:
        self.send_many(((topic, frame),))

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """Write the frames in as few system calls as is sensible.  Each write blocks for ``send_timeout`` at most.

        Raises TransportUnavailable also when the server has refused a frame of an earlier call, because its answers
        come later; the frames of this call, or those of them that were not written yet, are then not sent.
        """
        self._check_process()
        parts: list[bytes] = []
        size = 0
        with self._lock:
            for topic, frame in frames:
                parts += (self._head(topic), b"%d\r\n" % len(frame), frame, b"\r\n")
                size += len(frame)
                if size >= WRITE_BYTES_MAX or len(parts) >= 4 * self._settings.unanswered_max:
                    self._write(parts)
                    parts.clear()
                    size = 0
            if parts:
                self._write(parts)

    def serve(self, handler: QueryHandler) -> None:
        """Answer queries on a thread and a connection of their own.  Blocks until it listens, for a bounded time."""
        self._check_process()
        with self._lock:
            if self._is_closed or self._report is None:
                raise self._unavailable()
            if self._responder is not None:
                raise UsageError("serve was called already")
            self._responder = Responder(self._settings, handler, self._tally)
        self._responder.start()

    @property
    def handler_errors(self) -> int:
        return self._responder.handler.errors if self._responder is not None else 0

    @property
    def counters(self) -> Mapping[str, int]:
        return self._tally.counts()

    def close(self) -> None:
        """Wait for the answers to what was sent, ``send_timeout`` at most, then disconnect."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_closed = True
            responder = self._responder
        if self._waker is not None:
            self._waker.wake()
        if responder is not None:
            responder.stop()
        join_thread(self._keeper, self._settings)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Forked(f"the publisher of {self.address} belongs to the parent process; open a new one in the child")

    # Below: under the lock.

    def _unavailable(self) -> HeliographError:
        if self._is_closed:
            return Closed(f"the publisher of {self.address} is closed")
        if self._report is None:
            return UsageError("initialize was not called")
        return TransportUnavailable(f"{self.address}: {self._down_reason}")

    def _write(self, parts: list[bytes]) -> None:
        """Write PUBLISH commands, four parts each."""
        wire = self._wire
        if wire is None or self._is_closed:
            raise self._unavailable()
        try:
            if self._unanswered:
                self._collect(wire)
            while self._unanswered >= self._settings.unanswered_max:
                wire.wait(select.POLLIN, self._answer_due())
                self._collect(wire)
            if self._refusal is None:
                wire.write(b"".join(parts))
        except TransportUnavailable as error:
            self._lose(str(error))
            raise self._unavailable() from error
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise TransportUnavailable(f"{self.address} refused an earlier frame: {refusal}")
        self._count_sent(len(parts) // 4)

    def _count_sent(self, commands: int) -> None:
        if not self._unanswered:
            self._asked_at = time.monotonic()
        self._unanswered += commands
        self._sent += commands

    def _answer_due(self) -> float:
        return max(self._asked_at, self._heard_at) + self._settings.send_timeout_s

    def _collect(self, wire: Wire) -> None:
        """Take the answers that have arrived.  Raises TransportUnavailable when the link is lost."""
        answers = wire.receive()
        now = time.monotonic()
        if answers:
            self._heard_at = now
            self._unanswered -= len(answers)
            refusals = [answer for answer in answers if isinstance(answer, ServerError)]
            if refusals:
                self._note_refusals(refusals)
            if self._unanswered < 0:
                raise TransportUnavailable("the server answered a question that nobody asked")
        elif self._unanswered and now >= self._answer_due():
            raise TransportUnavailable(f"the server did not answer for {self._settings.send_timeout_s} s")

    def _note_refusals(self, refusals: Sequence[ServerError]) -> None:
        self._refusal = refusals[0]
        self._tally.add("frames_refused", len(refusals))
        if str(refusals[0]) != self._logged_refusal:  # the rest is told to the callers of send
            self._logged_refusal = str(refusals[0])
            LOG.warning("%s refused %d frames: %s", self.address, len(refusals), refusals[0])

    def _lose(self, reason: str) -> None:
        """Give the connection up; the keeper closes it and makes a new one."""
        self._down_reason = f"{reason}; {self._unanswered} commands were not answered" if self._unanswered else reason
        self._tally.add("frames_unconfirmed", self._unanswered)
        self._lost_wire, self._wire = self._wire, None
        if self._waker is not None:
            self._waker.wake()

    # Below: only the keeper, and before it initialize.

    def _keep(self) -> None:
        assert self._waker is not None
        while not self._is_closed:
            wire = self._wire
            if wire is not None:
                self._watch(wire)
                continue
            self._discard_lost()
            self._waker.clear()  # the loss woke us; the wait below is for what comes after it
            if not self._is_closed:
                self._waker.wait(self._backoff.next())
            if not self._is_closed:
                self._connect()
        self._discard_lost()
        self._finish()
        self._waker.close()

    def _connect(self) -> None:
        try:
            wire = Wire(self._settings)
        except TransportUnavailable as error:
            with self._lock:
                self._down_reason = str(error)
            self._tally.add("link_failures")
            self._announce(Disconnected(self.address, str(error)))
            return
        with self._lock:
            self._wire = wire
            self._refusal = None
            self._logged_refusal = ""
            self._unanswered = 0
            self._heard_at = time.monotonic()
        self._backoff.reset()
        self._announce(Connected(self.address))

    def _discard_lost(self) -> None:
        with self._lock:
            lost, self._lost_wire = self._lost_wire, None
        if lost is not None:
            lost.close()
            self._tally.add("link_failures")
            self._announce(Disconnected(self.address, self._down_reason))

    def _announce(self, report: LinkReport) -> None:
        """Report a change.  An attempt that fails while the link is down is none; another reason for it is logged."""
        if self._is_closed or self._report is None or report == self._reported:
            return
        is_still_down = isinstance(report, Disconnected) and isinstance(self._reported, Disconnected)
        self._reported = report
        if is_still_down:
            LOG.warning("%s: %s", self.address, self._down_reason)
            return
        try:
            self._report(report)
        except Exception:
            self._tally.add("report_errors")
            LOG.exception("the report of %s raised, which it must not; its news is lost", self.address)

    def _watch(self, wire: Wire) -> None:
        """Sleep until the link needs care, then see that it lives.

        While frames are being sent, answers do not wake the keeper, or it would compete with the sender for the
        interpreter at every frame; the end of the connection still does.
        """
        assert self._waker is not None
        is_busy = self._sent != self._sent_before
        self._sent_before = self._sent
        due = self._answer_due() if self._unanswered else self._heard_at + self._settings.health_interval_s
        timeout_s = BUSY_TICK_S if is_busy else max(0.0, due - time.monotonic())
        poller = select.poll()
        poller.register(self._waker, select.POLLIN)
        poller.register(wire, _HANGUP if is_busy else select.POLLIN)
        if any(descriptor == self._waker.fileno() for descriptor, _ in poller.poll(timeout_s * 1000)):
            self._waker.clear()
        with self._lock:
            if self._wire is wire and not self._is_closed:
                self._check_health(wire)

    def _check_health(self, wire: Wire) -> None:
        try:
            self._collect(wire)
            if not self._unanswered and time.monotonic() >= self._heard_at + self._settings.health_interval_s:
                wire.write(channels.PING)
                self._count_sent(1)
        except TransportUnavailable as error:
            self._lose(str(error))

    def _finish(self) -> None:
        """Wait for the answers that are still owed, and close."""
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is None:
            return
        deadline = time.monotonic() + self._settings.send_timeout_s
        try:
            while self._unanswered and wire.wait(select.POLLIN, deadline):
                self._collect(wire)
        except TransportUnavailable as error:
            LOG.warning("%s: %s", self.address, error)
        if self._unanswered:
            self._tally.add("frames_unconfirmed", self._unanswered)
            LOG.warning("%s did not confirm the last %d commands before it was closed", self.address, self._unanswered)
        wire.close()


class Responder:
    """Answers the queries that arrive on the query channel, each on the reply channel that it names."""

    def __init__(self, settings: Settings, handler: QueryHandler, tally: Tally) -> None:
        self._settings = settings
        self._tally = tally
        self.handler = GuardedHandler(handler)
        self._link = Link(
            settings,
            settings.address,
            channel=channels.query_channel(settings.channel_prefix),
            on_messages=self._answer,
            on_report=self._note,
            tally=tally,
        )

    def start(self) -> None:
        """Begin; blocks until queries are heard, or for ``connect_timeout``."""
        self._link.start()
        self._link.wait_settled(self._settings.connect_timeout_s)

    def stop(self) -> None:
        self._link.stop()
        self._link.join()

    def _answer(self, messages: list[Message]) -> None:
        for _, payload in messages:
            nonce, query = payload[: channels.NONCE_BYTES], payload[channels.NONCE_BYTES :]
            if not is_frame(query):
                self._tally.add("not_queries")
                LOG.warning("%s: %d bytes on the query channel are not a query", self._settings.address, len(payload))
                continue
            channel = channels.reply_channel(self._settings.channel_prefix, nonce)
            for reply in self.handler(query):
                self._link.publish(channel, reply)

    def _note(self, report: LinkReport) -> None:
        if isinstance(report, Disconnected):
            LOG.warning("%s: queries are not answered: %s", report.address, report.reason)
        else:
            LOG.debug("%s: queries are answered", report.address)
