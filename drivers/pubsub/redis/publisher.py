"""The sending end of the Redis driver.

``send`` writes to the socket on the calling thread and does not wait for the answer: answers are collected before the
next frame or, when none follows, by the keeper.  The keeper is a thread that connects, notices that the server has
gone or is silent, and makes the reports after the first one.  Only the keeper opens and closes connections; it uses the
open one under the lock.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from heliograph_drivers.pubsub.redis import channels, config
from heliograph_drivers.pubsub.redis.config import RedisSettings
from heliograph_drivers.pubsub.redis.connection import COUNTED, Message
from heliograph_drivers.pubsub.redis.link import RedisLink
from heliograph_drivers.pubsub.redis.wire import ServerError, Wire, join_timeout_s, reconnecting
from pubsub_api.core.frame import is_frame, name_of
from pubsub_api.driver import Connected, Disconnected, LinkReport, PublisherReport, SendRefused
from pubsub_api.driver_kit import DriverPublisher, GuardedHandler, Tally, Waker, join_thread, start_thread
from pubsub_api.errors import Closed, HeliographError, LimitReached, TransportUnavailable, UsageError, WaitTimeout
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

WRITE_BYTES_MAX = 1024 * 1024
"""Frames are joined into one write up to about this size."""
BUSY_TICK_S = 0.25
"""How often the keeper collects answers while frames are being sent."""
SETTLE_TICK_S = 0.005
"""How often a thread that waits for answers checks whether the keeper has collected them."""
TOPICS_MAX = 65_536
"""Topics whose PUBLISH command up to the payload is cached."""

_NO_PERMISSION = "NOPERM"
"""The beginning of a refusal by the server's ACL."""


def _publish_head(prefix: bytes, topic: str) -> bytes:
    return channels.publish_head(channels.channel_of(prefix, topic))


class RedisPublisher(DriverPublisher):
    """See the module's description."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(
            settings.address,
            Tally(*COUNTED, "frames_refused", "frames_unconfirmed", "not_queries", "report_errors"),
        )
        self._settings = settings
        self._responder: RedisResponder | None = None
        self._head = functools.lru_cache(TOPICS_MAX)(functools.partial(_publish_head, settings.channel_prefix))
        # Used by the keeper only, after initialize.
        self._keeper = threading.Thread(target=self._keep, name=f"redis-keeper-{settings.address}", daemon=True)
        self._waker: Waker | None = None
        self._backoff = reconnecting(settings)
        self._reported: LinkReport | None = None
        self._sent_before = 0
        # Guarded by the lock.
        self._wire: Wire | None = None
        self._lost_wire: Wire | None = None
        self._down_reason = "not connected yet"
        self._refusal: ServerError | None = None
        self._logged_refusal = ""
        self._sent = 0
        self._unanswered: collections.deque[bytes | None] = collections.deque()
        """Frames, and None for a PING, that the server has not answered yet."""
        self._asked_at = self._heard_at = 0.0

    def _open(self, report: PublisherReport) -> None:  # noqa: ARG002 - `_make_report` makes the reports
        """Try to connect once on this thread, then leave it to the keeper.  Blocks for about ``connect_timeout``."""
        self._waker = Waker()
        self._connect()
        try:
            start_thread(self._keeper)
        except LimitReached:
            with self._lock:
                self._is_closed = True
                wire, self._wire = self._wire, None
            if wire is not None:
                wire.close()
            self._waker.close()
            raise

    def send(self, topic: str, frame: bytes) -> None:
        self.send_many(((topic, frame),))

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """Write the frames in few system calls.  Each write blocks for ``operation_timeout_s`` at most.

        Raises TransportUnavailable also when the server has refused a frame of an earlier call, because its answers
        come later; frames of this call that were not written yet are then not sent.  A frame that is refused for lack
        of permission does not raise, because frames of other topics are not concerned: it is reported as `SendRefused`.
        """
        self._guard.check()
        parts: list[bytes] = []
        size = 0
        with self._lock:
            for topic, frame in frames:
                parts += (self._head(topic), b"%d\r\n" % len(frame), frame, b"\r\n")
                size += len(frame)
                if size >= WRITE_BYTES_MAX or len(parts) >= 4 * config.UNANSWERED_MAX:
                    self._write(parts)
                    parts.clear()
                    size = 0
            if parts:
                self._write(parts)

    def _serve(self, handler: GuardedHandler) -> None:
        """Answer queries on another thread and connection.  Blocks until they listen, for a bounded time."""
        with self._usable():
            responder = RedisResponder(self._settings, handler, self._tally, self._await_answers)
            self._responder = responder
        responder.start()

    def settle(self, *, timeout_s: float | None = None) -> None:
        self._guard.check()
        self._await_answers(timeout_s)
        with self._lock:
            self._raise_refusal()

    def _await_answers(self, timeout_s: float | None = None) -> None:
        """Block until the server has answered all frames sent before.  Raises TransportUnavailable when it does not
        answer in time, WaitTimeout after ``timeout_s``."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            wire, sent = self._wire, self._sent
        while wire is not None:
            with self._lock:
                if self._wire is wire:
                    self._check_health(wire)
                if self._wire is not wire:
                    raise self._unavailable()
                if self._sent - len(self._unanswered) >= sent:
                    return
            if time.monotonic() > deadline:
                raise WaitTimeout(f"{self.address} has not answered all frames within {timeout_s} s")
            with contextlib.suppress(OSError, ValueError):  # the keeper may have closed it meanwhile
                wire.wait(select.POLLIN, time.monotonic() + SETTLE_TICK_S)

    def _close(self) -> None:
        """Wait for the answers to the last frames, ``operation_timeout_s`` at most, then disconnect."""
        with self._lock:
            responder = self._responder
        if self._waker is not None:
            self._waker.wake()
        if responder is not None:
            responder.stop()
        join_thread(self._keeper, join_timeout_s(self._settings))

    # -- under the lock

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
            while len(self._unanswered) >= config.UNANSWERED_MAX:
                wire.wait(select.POLLIN, self._answer_due())
                self._collect(wire)
            if self._refusal is None:
                wire.write(b"".join(parts))
        except TransportUnavailable as error:
            self._lose(str(error))
            raise self._unavailable() from error
        self._raise_refusal()
        self._note_sent(parts[2::4])

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise TransportUnavailable(f"{self.address} refused an earlier frame: {refusal}")

    def _note_sent(self, commands: Sequence[bytes | None]) -> None:
        if not self._unanswered:
            self._asked_at = time.monotonic()
        self._unanswered += commands
        self._sent += len(commands)

    def _answer_due(self) -> float:
        return max(self._asked_at, self._heard_at) + self._settings.operation_timeout_s

    def _collect(self, wire: Wire) -> None:
        """Take the answers that have arrived.  Raises TransportUnavailable when the link is lost."""
        answers = wire.receive()
        now = time.monotonic()
        if answers:
            self._heard_at = now
            if len(answers) > len(self._unanswered):
                raise TransportUnavailable("the server sent an answer without a question")
            for answer in answers:
                frame = self._unanswered.popleft()
                if isinstance(answer, ServerError):
                    self._note_refusal(answer, frame)
        elif self._unanswered and now >= self._answer_due():
            raise TransportUnavailable(f"the server did not answer for {self._settings.operation_timeout_s} s")

    def _note_refusal(self, refusal: ServerError, frame: bytes | None) -> None:
        self._tally.add("frames_refused")
        if frame is not None and str(refusal).startswith(_NO_PERMISSION):
            topic = name_of(frame).decode(errors="replace")
            self._make_report(
                SendRefused(self.address, frame, f"{self.address} refused a frame of topic {topic!r}: {refusal}")
            )
            return
        self._refusal = refusal
        if str(refusal) != self._logged_refusal:  # each refusal is raised; only a new one is logged
            self._logged_refusal = str(refusal)
            LOG.warning("%s refused a frame: %s", self.address, refusal)

    def _lose(self, reason: str) -> None:
        """Give the connection up; the keeper closes it and opens a new one."""
        unanswered = len(self._unanswered)
        self._down_reason = f"{reason}; {unanswered} commands were not answered" if unanswered else reason
        self._tally.add("frames_unconfirmed", unanswered)
        self._lost_wire, self._wire = self._wire, None
        if self._waker is not None:
            self._waker.wake()

    # -- on the thread of the keeper; `_connect` also in `initialize`, before it

    def _keep(self) -> None:
        assert self._waker is not None
        while not self._is_closed:
            wire = self._wire
            if wire is not None:
                self._watch(wire)
                continue
            self._discard_lost()
            self._waker.clear()  # of the loss; the wait below is for later events
            if not self._is_closed:
                self._waker.wait(self._backoff.next_s())
            if not self._is_closed:
                self._connect()
        self._discard_lost()
        self._finish()
        self._waker.close()

    def _note_arrival(self, wire: Wire) -> None:
        """Write the note of [redis] note_arrivals, before any frame.  Raises TransportUnavailable."""
        key = channels.arrivals_key(self._settings.channel_prefix)
        try:
            wire.write(channels.command(b"SET", key, os.urandom(8).hex().encode()))
            deadline = time.monotonic() + self._settings.operation_timeout_s
            answers: Sequence[object] = ()
            while not answers:
                if not wire.wait(select.POLLIN, deadline):
                    raise TransportUnavailable(f"the server did not answer for {self._settings.operation_timeout_s} s")
                answers = wire.receive()
            if isinstance(answers[0], ServerError):
                raise TransportUnavailable(f"the server refused the note of [redis] note_arrivals: {answers[0]}")
        except TransportUnavailable:
            wire.close()
            raise

    def _connect(self) -> None:
        try:
            wire = Wire(self._settings)
            if self._settings.note_arrivals:
                self._note_arrival(wire)
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
            self._unanswered.clear()
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
        """Report a change of the link.  A failed attempt while it is down is no change; it is logged when it has a new
        reason."""
        if self._is_closed or self._report is None or report == self._reported:
            return
        is_still_down = isinstance(report, Disconnected) and isinstance(self._reported, Disconnected)
        self._reported = report
        if is_still_down:
            LOG.warning("%s: %s", self.address, self._down_reason)
            return
        self._make_report(report)

    def _make_report(self, report: LinkReport) -> None:
        """Call the report function.  For a refused frame it is called under the lock."""
        assert self._report is not None
        try:
            self._report(report)
        except Exception:
            self._tally.add("report_errors")
            LOG.exception("the report function of %s raised, which it must not; this report is lost", self.address)

    def _watch(self, wire: Wire) -> None:
        """Sleep until answers or a PING are due, then check the link.

        While frames are being sent, answers do not wake the keeper: it would compete with the sender for the
        interpreter at every frame.  The end of the connection still wakes it.
        """
        assert self._waker is not None
        is_busy = self._sent != self._sent_before
        self._sent_before = self._sent
        due = self._answer_due() if self._unanswered else self._heard_at + self._settings.health_interval_s
        timeout_s = BUSY_TICK_S if is_busy else max(0.0, due - time.monotonic())
        poller = select.poll()
        poller.register(self._waker, select.POLLIN)
        poller.register(wire, select.POLLRDHUP if is_busy else select.POLLIN)
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
                self._note_sent([None])
        except TransportUnavailable as error:
            self._lose(str(error))

    def _finish(self) -> None:
        """Wait for the missing answers, and close."""
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is None:
            return
        deadline = time.monotonic() + self._settings.operation_timeout_s
        try:
            while self._unanswered and wire.wait(select.POLLIN, deadline):
                self._collect(wire)
        except TransportUnavailable as error:
            LOG.warning("%s: %s", self.address, error)
        if self._unanswered:
            count = len(self._unanswered)
            self._tally.add("frames_unconfirmed", count)
            LOG.warning("%s did not answer the last %d commands before the publisher was closed", self.address, count)
        wire.close()


class RedisResponder:
    """Answers queries from the channels of its scopes, each on the reply channel of the asker."""

    def __init__(
        self, settings: RedisSettings, handler: GuardedHandler, tally: Tally, settle: Callable[[], None]
    ) -> None:
        """``settle`` is called before each answer."""
        self._settings = settings
        self._settle = settle
        self._tally = tally
        self._log_garbage = RateLimitedLog(LOG)
        self._handler = handler
        prefix, scopes = settings.channel_prefix, settings.answer_scopes
        self._link = RedisLink(
            settings,
            settings.address,
            targets=[target for scope in scopes for target in channels.answer_targets(prefix, scope)],
            optional=[target for scope in scopes for target in channels.broader_targets(prefix, scope)],
            on_messages=self._answer,
            on_report=self._log_link,
            tally=tally,
        )

    def start(self) -> None:
        """Begin to answer.  Blocks until the link is up, for ``connect_timeout`` at most."""
        self._link.start()
        self._link.wait_settled(self._settings.connect_timeout_s)

    def stop(self) -> None:
        self._link.stop()
        self._link.join()

    def _answer(self, link: RedisLink, messages: list[Message]) -> None:
        prefix = self._settings.channel_prefix
        for channel, payload in messages:
            nonce, query = payload[: channels.NONCE_BYTES], payload[channels.NONCE_BYTES :]
            scope = name_of(query)
            if not is_frame(query) or channel != channels.ask_channel(prefix, scope):
                self._tally.add("not_queries")
                self._log_garbage(
                    "%s: %d bytes on the query channel are no query", self._settings.address, len(payload)
                )
                continue
            with contextlib.suppress(TransportUnavailable):  # the link was lost, so no frame was refused
                self._settle()
            reply_channel = channels.reply_channel(prefix, scope, nonce)
            for reply in self._handler(query):
                link.publish(reply_channel, reply)

    def _log_link(self, link: RedisLink, report: LinkReport) -> None:
        if isinstance(report, Disconnected):
            LOG.warning("%s: queries are not answered: %s", link.address, report.reason)
        else:
            LOG.debug("%s: queries are answered", link.address)
