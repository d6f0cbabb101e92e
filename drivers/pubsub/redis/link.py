"""A link that listens: one thread, one connection at a time, and subscriptions that survive the loss of a connection.

A subscriber has one link per address; a publisher that answers queries has one as well.

Only the thread of the link uses the connection.  Other threads leave work for it (filters to add or drop, messages to
publish) under the lock and wake it.

Between two turns the thread may be lent to the receiver with the messages that it hands over.  When it stays away for
too long, another thread takes over the connection, and the first one ends when it comes back.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from heliograph_drivers.pubsub.redis import channels
from heliograph_drivers.pubsub.redis.channels import ChannelTarget
from heliograph_drivers.pubsub.redis.config import QUERIES_MAX, RedisSettings
from heliograph_drivers.pubsub.redis.connection import COUNTED, ListeningConnection, Message, OnReached
from heliograph_drivers.pubsub.redis.wire import join_timeout_s, reconnecting
from pubsub_api.driver import Connected, Disconnected, LinkReport, Subscribed
from pubsub_api.driver_kit import ReplaceableThread, Tally, Waker
from pubsub_api.errors import LimitReached, TransportUnavailable
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

COUNTED_WHERE_POSTED = (*COUNTED, "messages_dropped")
"""The counters of a link whose `RedisLink.post` is used: messages may be dropped before they are sent."""

Relieve = Callable[[], None]
"""Makes another thread take over the connection."""


class _Post(NamedTuple):
    """A message to publish, and the channel for its answers."""

    channel: bytes
    payload: bytes
    reply: ChannelTarget
    on_reached: OnReached


class RedisLink:
    """See the module's description.  Public methods may be called from any thread unless they say otherwise.

    ``on_messages`` and ``on_report`` are called on the thread of the link with the link.  They must not raise, except
    that ``on_messages`` may raise what `publish` raises.  When the thread may be lent, ``on_messages_lent`` is called
    instead of ``on_messages``; it returns True when the thread was replaced meanwhile.
    """

    def __init__(
        self,
        settings: RedisSettings,
        address: str,
        *,
        targets: Sequence[ChannelTarget] = (),
        optional: Sequence[ChannelTarget] = (),
        on_messages: Callable[[RedisLink, list[Message]], None],
        on_report: Callable[[RedisLink, LinkReport], None],
        tally: Tally,
        on_messages_lent: Callable[[RedisLink, list[Message], Relieve], bool] | None = None,
        reads_arrivals: bool = False,
    ) -> None:
        """The link subscribes to ``targets`` and to its filters, and to ``optional`` targets if the server allows it.

        With ``reads_arrivals`` its `Connected` reports have the newest note of a publisher.  ``address`` is the name in
        reports.
        """
        self.address = address
        self._settings = settings
        self._always = tuple(targets)
        self._optional = tuple(dict.fromkeys(optional))
        self._on_messages = on_messages
        self._on_report = on_report
        self._tally = tally
        self._log_refusal = RateLimitedLog(LOG)
        self._on_messages_lent = on_messages_lent
        self._reads_arrivals = reads_arrivals
        self._thread = ReplaceableThread(f"redis-link-{address}", self._run)
        self._waker = Waker()
        self._backoff = reconnecting(settings)
        self.is_stopping = False
        self._down_reason: str | None = None  # None while up, and before the first attempt
        self._connection: ListeningConnection | None = None  # only the thread uses it
        # Guarded by the lock: what other threads leave for the thread of the link.
        self._lock = threading.Lock()
        self._filters: dict[str, None] = {}
        self._changes: collections.deque[tuple[bool, str]] = collections.deque()
        self._outbox: collections.deque[_Post] = collections.deque()
        self._takes_changes = False
        self.is_up = False
        self._is_settled = threading.Event()

    def start(self, filters: Iterable[str] = ()) -> None:
        """Raises LimitReached."""
        self._filters.update(dict.fromkeys(filters))
        try:
            self._thread.start()
        except LimitReached:
            self._waker.close()
            raise

    def stop(self) -> None:
        """Ask the thread to end after the call that it is making.  Does not wait.  Idempotent."""
        self.is_stopping = True
        if not self._thread.has_started:
            self._waker.close()
        self._waker.wake()

    def join(self) -> None:
        """Wait, for a bounded time, until the thread has ended."""
        self._thread.join(join_timeout_s(self._settings))

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is of this link."""
        return self._thread.is_current

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def wait_settled(self, timeout_s: float) -> None:
        """Block until the first attempt to connect has succeeded or failed, or the time is over."""
        self._is_settled.wait(timeout_s)

    def add_filter(self, topic_filter: str) -> None:
        """Subscribe to a filter that is new."""
        with self._lock:
            self._filters[topic_filter] = None
            self._note_change(True, topic_filter)

    def drop_filter(self, topic_filter: str) -> None:
        """Unsubscribe from a filter that was added."""
        with self._lock:
            del self._filters[topic_filter]
            self._note_change(False, topic_filter)

    def post(self, channel: bytes, payload: bytes, reply_channel: bytes, on_reached: OnReached) -> bool:
        """Queue a message to be published, after a subscription to its reply channel.  Does not block.

        Returns False when the link is down or the queue is full.  ``on_reached`` is called on the thread of the link
        when the server has answered.
        """
        with self._lock:
            if not self.is_up:
                return False
            if len(self._outbox) >= QUERIES_MAX:
                self._tally.add("messages_dropped")
                return False
            self._outbox.append(_Post(channel, payload, ChannelTarget(False, reply_channel), on_reached))
        self._waker.wake()
        return True

    def publish(self, channel: bytes, payload: bytes) -> None:
        """Publish a message at once.  Call it only in ``on_messages``, on the thread of the link.  Raises
        TransportUnavailable."""
        assert self._connection is not None
        self._connection.publish(channel, payload)

    def _note_change(self, is_added: bool, topic_filter: str) -> None:
        if self._takes_changes:  # else the next connection begins with the filters of that time
            self._changes.append((is_added, topic_filter))
            self._waker.wake()

    # -- on the thread of the link

    def _run(self) -> None:
        """Keep up a connection until `stop`, beginning with the present one when this thread replaces another."""
        try:
            while not self.is_stopping and self._thread.is_owner:
                try:
                    self._use_connection()
                except TransportUnavailable as error:
                    if not self.is_stopping:
                        self._report_loss(str(error))
                        self._waker.wait(self._backoff.next_s())
        finally:
            if self._thread.is_owner:
                self._is_settled.set()
                self._waker.close()

    def _report_loss(self, reason: str) -> None:
        """Report a loss, or that the first attempt failed.  Log when a later attempt fails for another reason."""
        self._tally.add("link_failures")
        before, self._down_reason = self._down_reason, reason
        if before is None:
            self._on_report(self, Disconnected(self.address, reason))
        elif before != reason:
            LOG.warning("%s: %s", self.address, reason)
        self._is_settled.set()

    def _use_connection(self) -> None:
        """Use the present connection, or a new one, until `stop` or until this thread is replaced.

        Raises TransportUnavailable when the connection is lost.
        """
        connection = self._connection
        try:
            if connection is None:
                connection = self._connect()
            while not self.is_stopping and not self._pass_on_lent(connection):
                connection.listen()
                if self._changes:  # read without the lock: a thread that adds a change wakes this thread after it
                    self._apply_changes(connection)
                if self._outbox:
                    self._empty_outbox(connection)
        finally:
            if self._thread.is_owner:
                self._disconnect()

    def _connect(self) -> ListeningConnection:
        connection = self._connection = ListeningConnection(
            self._settings, self.address, self._waker, self._tally,
            on_messages=self._hand_over, on_report=self._make_report, log_refusal=self._log_refusal,
        )  # fmt: skip
        with self._lock:
            filters = list(self._filters)
            self._changes.clear()
            self._takes_changes = True
        connection.subscribe(self._always)
        connection.subscribe(self._optional, is_vital=False)
        for topic_filter in filters:
            connection.subscribe(self._targets(topic_filter))
            connection.pace(self._must_stop)
        if self._reads_arrivals:
            connection.read_arrivals()
        connection.ping(Connected(self.address))
        connection.flush()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        with self._lock:
            self.is_up = self._takes_changes = False
            if self._outbox:
                self._tally.add("messages_dropped", len(self._outbox))
                self._outbox.clear()
        if connection is not None:
            connection.close()
            if self._on_messages_lent is not None:
                connection.pass_on()  # the last frames; a responder has none, and could not answer any more

    def _must_stop(self) -> bool:
        return self.is_stopping

    def _apply_changes(self, connection: ListeningConnection) -> None:
        while True:
            with self._lock:
                if not self._changes:
                    break
                is_added, topic_filter = self._changes.popleft()
            if is_added:
                connection.subscribe(self._targets(topic_filter))
                connection.ping(Subscribed(self.address, topic_filter))
            else:
                connection.unsubscribe(self._targets(topic_filter))
            connection.pace(self._must_stop)
        connection.flush()

    def _empty_outbox(self, connection: ListeningConnection) -> None:
        with self._lock:
            messages = list(self._outbox)
            self._outbox.clear()
        for post in messages:
            connection.listen_for_replies(post.reply)
            connection.publish(post.channel, post.payload, post.on_reached)

    def _targets(self, topic_filter: str) -> list[ChannelTarget]:
        return channels.targets(self._settings.channel_prefix, topic_filter)

    def _hand_over(self, messages: list[Message]) -> None:
        if not self.is_stopping:
            self._on_messages(self, messages)

    def _pass_on_lent(self, connection: ListeningConnection) -> bool:
        """Hand over the messages, and lend this thread with them.  Returns True when it was replaced meanwhile."""
        messages = connection.messages
        if not messages:
            return False
        if self._on_messages_lent is None:
            connection.pass_on()
            return False
        connection.messages = []
        return self._on_messages_lent(self, messages, self._thread.replace)

    def _make_report(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            assert self._connection is not None
            report = Connected(report.address, self._connection.arrivals)
            with self._lock:
                self.is_up = True
            self._down_reason = None
            self._backoff.reset()
        self._on_report(self, report)
        self._is_settled.set()
