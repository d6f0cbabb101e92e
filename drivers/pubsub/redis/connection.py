"""A connection that listens: the commands that were sent, the answers to them, and the messages that arrived.

Redis executes and answers the commands of a connection in order.  So ``_expected``, the queue of unanswered commands,
tells to which command an answer belongs.  A PING after some SUBSCRIBEs is answered when all of them are in effect; then
the report that was queued with it is made.  An idle connection sends a PING to see whether the server lives.  The
connection is lost when the server does not answer for ``operation_timeout_s``.

It has no thread and does not connect again: `link` does both.
"""

from __future__ import annotations

import collections
import logging
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from heliograph_drivers.pubsub.redis import channels
from heliograph_drivers.pubsub.redis.channels import ChannelTarget
from heliograph_drivers.pubsub.redis.config import RedisSettings
from heliograph_drivers.pubsub.redis.wire import ServerError, Wire
from pubsub_api.driver import LinkReport
from pubsub_api.driver_kit import Tally, UseCounts, Waker
from pubsub_api.errors import TransportUnavailable
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

Message = tuple[bytes, bytes]
"""Channel and payload."""
OnReached = Callable[[int], None]
"""Called with the number of clients to which a message was delivered."""

REPLY_CHANNELS_MAX = 1024
"""Reply channels of a link, one for each scope in which it asks; the least recently used one is unsubscribed."""
EXPECTED_MAX = 1024
"""Subscriptions ahead of their answers.  The server keeps the answers in the bounded buffer of a subscriber."""
SOURCES_MAX = 65_536

COUNTED = ("link_failures", "messages_refused")
"""The counters of a link: lost links and failed attempts; refused questions, answers and channels for them."""


class _Expected(NamedTuple):
    """A command that was not answered yet."""

    what: str
    is_vital: bool = True
    """Whether the connection is given up when the server refuses it."""
    target: ChannelTarget | None = None
    """The target of a subscription that is not vital."""
    report: LinkReport | None = None
    """Made when the command is answered."""
    on_reached: OnReached | None = None
    """Called with the number in the answer."""
    on_value: Callable[[Any], None] | None = None
    """Called with the answer."""


class ListeningConnection:
    """See the module's description.  One thread at a time may use it.

    `listen` calls ``on_messages`` and ``on_report``, in the order of the server's answers.  Every method except `close`
    raises TransportUnavailable when the connection is lost.
    """

    def __init__(
        self,
        settings: RedisSettings,
        address: str,
        waker: Waker,
        tally: Tally,
        *,
        on_messages: Callable[[list[Message]], None],
        on_report: Callable[[LinkReport], None],
        log_refusal: RateLimitedLog,
    ) -> None:
        """Connect and log in.  Blocks, each step for ``connect_timeout``."""
        self._settings = settings
        self._address = address
        self._waker = waker
        self._tally = tally
        self._on_messages = on_messages
        self._on_report = on_report
        self._log_refusal = log_refusal
        self._wire = Wire(settings)
        self._descriptor = self._wire.fileno()
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLIN)
        self._poller.register(waker, select.POLLIN)
        self.messages: list[Message] = []
        """Messages that were read and not handed over yet."""
        self._expected: collections.deque[_Expected] = collections.deque()
        self._targets: UseCounts[ChannelTarget] = UseCounts()
        self._reply_targets: dict[ChannelTarget, None] = {}
        """The most recently used one is the last."""
        self._sources: dict[bytes, bytes] = {}
        self._newest_arrival = self._server_run = b""
        self._unsent: list[bytes] = []
        self._asked_at = 0.0
        self._heard_at = time.monotonic()

    def close(self) -> None:
        self._wire.close()

    # -- commands, which are written by `flush`; `publish` calls it

    def subscribe(self, targets: Sequence[ChannelTarget], *, is_vital: bool = True) -> None:
        for target in self._targets.add(targets):
            expected = _Expected(f"a subscription to {target.name!r}", is_vital, None if is_vital else target)
            self._command(channels.subscribe_command(target), expected)

    def unsubscribe(self, targets: Sequence[ChannelTarget]) -> None:
        for target in self._targets.remove(targets):
            self._command(channels.unsubscribe_command(target), _Expected(f"leaving {target.name!r}"))

    def ping(self, report: LinkReport | None) -> None:
        """Make the report when all earlier commands are in effect."""
        self._command(channels.PING, _Expected("PING", report=report))

    def publish(self, channel: bytes, payload: bytes, on_reached: OnReached | None = None) -> None:
        """Publish a message at once."""
        expected = _Expected(f"a message to {channel!r}", is_vital=False, on_reached=on_reached)
        self._command(channels.command(b"PUBLISH", channel, payload), expected)
        self.flush()

    def listen_for_replies(self, target: ChannelTarget) -> None:
        """Subscribe to a reply channel.  Redis executes it before a later `publish` of the same connection."""
        if target in self._reply_targets:
            del self._reply_targets[target]
        else:
            self.subscribe([target], is_vital=False)
        self._reply_targets[target] = None
        if len(self._reply_targets) > REPLY_CHANNELS_MAX:
            oldest = next(iter(self._reply_targets))
            del self._reply_targets[oldest]
            self.unsubscribe([oldest])

    def read_arrivals(self) -> None:
        """Ask for the newest note of a publisher, and for the run of the server: after a restart with older data a note
        may be missing.

        The server executes it after the subscriptions.  If there is no note, one is written, so that its loss is
        detected.
        """
        key = channels.arrivals_key(self._settings.channel_prefix)
        for command, on_value in (
            (channels.command(b"SET", key, os.urandom(8).hex().encode(), b"NX"), None),
            (channels.command(b"GET", key), self._note_arrival),
            (channels.command(b"INFO", b"server"), self._note_server),
        ):
            self._command(command, _Expected("reading arrivals", is_vital=False, on_value=on_value))

    @property
    def arrivals(self) -> str:
        """The result of `read_arrivals`; empty when the server has not told it."""
        is_known = self._newest_arrival and self._server_run
        return (self._server_run + b" " + self._newest_arrival).decode() if is_known else ""

    def _note_arrival(self, answer: Any) -> None:
        self._newest_arrival = answer if isinstance(answer, bytes) else b""

    def _note_server(self, answer: Any) -> None:
        text = answer if isinstance(answer, bytes) else str(answer).encode()
        self._server_run = next((line for line in text.split() if line.startswith(b"run_id:")), b"")

    def pace(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until the server has answered enough subscriptions, so that more can be sent."""
        if len(self._expected) < EXPECTED_MAX:
            return
        self.flush()
        while len(self._expected) >= EXPECTED_MAX // 2 and not is_stopping():
            self.listen()

    def flush(self) -> None:
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            self._wire.write(data)

    def _command(self, command: bytes, expected: _Expected) -> None:
        if not self._expected:
            self._asked_at = time.monotonic()
        self._expected.append(expected)
        self._unsent.append(command)

    # -- listening

    def listen(self) -> None:
        """Wait for the server, for the waker, or until an answer or a PING is due; read what has arrived.

        The server is late only when there is nothing to read: the receiver may have kept this thread from reading.
        """
        due = self._heard_at + self._settings.health_interval_s
        if self._expected:
            due = max(self._asked_at, self._heard_at) + self._settings.operation_timeout_s
        ready = dict(self._poller.poll(max(0.0, due - time.monotonic()) * 1000))
        is_readable = self._descriptor in ready
        if len(ready) > is_readable:
            self._waker.clear()
        if is_readable:
            self._receive()
        elif time.monotonic() >= due:
            if self._expected:
                raise TransportUnavailable(f"the server did not answer for {self._settings.operation_timeout_s} s")
            self.ping(None)
            self.flush()

    def _receive(self) -> None:
        """Read what has arrived, hand over the messages in one call, and handle the answers."""
        answers = self._wire.receive()
        self._heard_at = time.monotonic()
        if self.messages:
            self.pass_on()
        for answer in answers:
            is_push = isinstance(answer, list)
            if is_push and answer[0] in (b"message", b"pmessage"):
                self._add_message(answer)
                continue
            if is_push:
                self._sources.clear()  # the subscriptions have changed: another copy of a message may come first now
            self.pass_on()
            self._answered(answer)

    def _add_message(self, push: list[bytes]) -> None:
        """Keep one copy of each message.

        Redis sends a message once for each channel or pattern of the connection that it matches, all copies in a row.
        The subscription that brought the first message of a channel brings all of them, so copies by others are
        dropped; the choice holds until the subscriptions change.
        """
        source, channel, payload = push[-3], push[-2], push[-1]  # a plain message has its kind in the pattern's place
        if self._sources.setdefault(channel, source) == source:
            self.messages.append((channel, payload))
        if len(self._sources) > SOURCES_MAX:
            self._sources.clear()  # at worst one copy too many, which the core drops

    def pass_on(self) -> None:
        """Hand over the messages read so far."""
        messages, self.messages = self.messages, []
        if messages:
            self._on_messages(messages)

    def _answered(self, answer: Any) -> None:
        if not self._expected:
            raise TransportUnavailable(f"the server sent an answer without a question: {str(answer)[:80]!r}")
        expected = self._expected.popleft()
        if isinstance(answer, ServerError):
            if expected.is_vital:
                raise TransportUnavailable(f"the server refused {expected.what}: {answer}")
            self._tally.add("messages_refused")
            if expected.target is not None:  # forgotten, so that it is subscribed to again when it is needed again
                self._targets.forget(expected.target)
                self._reply_targets.pop(expected.target, None)
                LOG.info("%s refused %s: %s", self._address, expected.what, answer)
                return
            self._log_refusal("%s refused %s: %s", self._address, expected.what, answer)
        elif expected.report is not None:
            self._on_report(expected.report)
        elif expected.on_reached is not None and isinstance(answer, int):
            expected.on_reached(answer)
        elif expected.on_value is not None:
            expected.on_value(answer)
