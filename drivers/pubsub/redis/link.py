"""A link that listens: one thread, one connection, subscriptions kept alive through every loss of the server.

Subscribers have one link per address; a publisher that answers queries has one as well.

Theory of operation.  The thread alone uses the connection.  Others leave their wishes (filters to add or drop, messages
to publish) under the lock and wake it.  Redis executes the commands of a connection in order and answers them in order,
so ``_expected``, the queue of commands that were not answered yet, tells what each answer belongs to.  A PING sent
after some SUBSCRIBEs is answered when all of them are in effect: it carries the report that says so.  An idle link
sends one to see whether the server lives; one that is owed an answer and hears nothing for ``send_timeout`` is lost.

Between two turns, when nothing is under way, the thread may be lent with the messages it hands over.  When it stays
away, another one goes on with the connection where it left off, and it ends when it comes back.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from drivers.pubsub.redis import channels
from drivers.pubsub.redis.channels import ChannelTarget
from drivers.pubsub.redis.config import QUERIES_MAX, RedisSettings
from drivers.pubsub.redis.resp import ServerError
from drivers.pubsub.redis.wire import Wire, join_thread, reconnecting
from pubsub_api.driver import Connected, Disconnected, LinkReport, Subscribed
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.errors import LimitReached, TransportUnavailable
from pubsub_api.runtime.rare_logging import SeldomLog
from pubsub_api.runtime.threads import start_thread
from pubsub_api.runtime.waking import Waker

LOG = logging.getLogger(__name__)

Message = tuple[bytes, bytes]
"""Channel and payload."""
OnReached = Callable[[int], None]
"""Told how many clients a message was delivered to."""

REPLY_CHANNELS_MAX = 1024
"""Channels in which a link listens for replies, one for each scope it asks in; the one used longest ago is left."""
EXPECTED_MAX = 1024
"""Subscriptions asked for ahead of their answers, which the server keeps in the bounded buffer of a subscriber."""
SOURCES_MAX = 65_536

COUNTED = ("link_failures", "messages_refused")
"""What a link counts: losses and attempts that failed; questions, answers and channels for them that were refused."""
COUNTED_WHERE_POSTED = (*COUNTED, "messages_dropped")
"""The same where `RedisLink.post` is used: messages may wait in vain."""

Relieve = Callable[[], None]
"""Has another thread go on with the connection."""
OnMessagesLent = Callable[[list[Message], Relieve], bool]
"""Takes messages for as long as it likes; True when the thread was replaced meanwhile."""


class _Post(NamedTuple):
    """A message to be published, with the channel in which answers to it come."""

    channel: bytes
    payload: bytes
    reply: ChannelTarget
    on_reached: OnReached


class _Expected(NamedTuple):
    """A command that the server owes an answer."""

    what: str
    is_vital: bool = True
    """The link is useless when the server refuses it."""
    target: ChannelTarget | None = None
    """What is subscribed to, where that is not vital."""
    report: LinkReport | None = None
    """What is true once it was answered."""
    on_reached: OnReached | None = None
    """Told the number in the answer."""
    on_value: Callable[[Any], None] | None = None
    """Told the answer."""


class RedisLink:
    """See the module's description.  Public methods may be called from any thread unless they say otherwise.

    ``on_messages`` and ``on_report`` are called on the thread of the link and must not raise, except that
    ``on_messages`` may let through what `publish` raises.  ``on_messages_lent`` is called instead of the first where
    the thread may be away.
    """

    def __init__(
        self,
        settings: RedisSettings,
        address: str,
        *,
        targets: Sequence[ChannelTarget] = (),
        optional: Sequence[ChannelTarget] = (),
        on_messages: Callable[[list[Message]], None],
        on_report: Callable[[LinkReport], None],
        tally: Tally,
        on_messages_lent: OnMessagesLent | None = None,
        reads_arrivals: bool = False,
    ) -> None:
        """``targets`` are subscribed to always, beside the filters, and ``optional`` ones as far as the server lets.

        With ``reads_arrivals`` it reports, when it is up, what publishers have noted when they came.
        ``address`` is the name used in reports.
        """
        self.address = address
        self._settings = settings
        self._always = tuple(targets)
        self._optional = tuple(dict.fromkeys(optional))
        self._on_messages = on_messages
        self._on_report = on_report
        self._tally = tally
        self._log_refusal = SeldomLog(LOG)
        self._on_messages_lent = on_messages_lent
        self._reads_arrivals = reads_arrivals
        self._threads = [self._new_thread(self._run)]
        """The last one has the connection; those before it were lent when they were replaced."""
        self._waker = Waker()
        self._backoff = reconnecting(settings)
        self._is_stopping = False
        self._down_reason: str | None = None  # None while up, and before the first attempt
        # Guarded by the lock: what other threads leave for ours.
        self._lock = threading.Lock()
        self._filters: dict[str, None] = {}
        self._changes: collections.deque[tuple[bool, str]] = collections.deque()
        self._outbox: collections.deque[_Post] = collections.deque()
        self._takes_changes = False
        self._is_up = False
        self._is_settled = threading.Event()
        # The thread's own: the state of the present connection.
        self._wire: Wire
        self._wire_descriptor = -1
        self._poller: select.poll
        self._expected: collections.deque[_Expected] = collections.deque()
        self._users: collections.Counter[ChannelTarget] = collections.Counter()
        self._reply_targets: dict[ChannelTarget, None] = {}
        """The one used last is the last."""
        self._sources: dict[bytes, bytes] = {}
        self._newest_arrival = b""
        self._server_run = b""
        self._unsent: list[bytes] = []
        self._messages: list[Message] = []
        self._asked_at = self._heard_at = 0.0

    def start(self, filters: Iterable[str] = ()) -> None:
        self._filters.update(dict.fromkeys(filters))
        start_thread(self._threads[0])

    def _new_thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=f"redis-link-{self.address}", daemon=True)

    def stop(self) -> None:
        """Ask the thread to end; it makes at most the call that is under way.  Does not wait.  Idempotent."""
        self._is_stopping = True
        if self._threads[0].ident is None:
            self._waker.close()
        self._waker.wake()

    def join(self) -> None:
        """Wait, for a bounded time, until the thread has ended."""
        for thread in self.threads:
            join_thread(thread, self._settings)
        join_thread(self._threads[-1], self._settings)  # one more may have come meanwhile

    @property
    def threads(self) -> list[threading.Thread]:
        return list(self._threads)

    @property
    def is_alive(self) -> bool:
        return self._threads[-1].is_alive()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def is_up(self) -> bool:
        return self._is_up

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
        """Publish a message soon, and before that listen to a channel for replies.  Does not block.

        False when the link is down or too many wait already.  ``on_reached`` is called on the thread of the link, when
        the server has answered.
        """
        with self._lock:
            if not self._is_up:
                return False
            if len(self._outbox) >= QUERIES_MAX:
                self._tally.add("messages_dropped")
                return False
            self._outbox.append(_Post(channel, payload, ChannelTarget(False, reply_channel), on_reached))
        self._waker.wake()
        return True

    def publish(self, channel: bytes, payload: bytes, on_reached: OnReached | None = None) -> None:
        """Publish a message at once.  Only on the thread of the link, in ``on_messages``."""
        expected = _Expected(f"a message to {channel!r}", is_vital=False, on_reached=on_reached)
        self._command(channels.command(b"PUBLISH", channel, payload), expected)
        self._flush()

    def _note_change(self, is_added: bool, topic_filter: str) -> None:
        if self._takes_changes:  # else the next connection starts from the filters as they are then
            self._changes.append((is_added, topic_filter))
            self._waker.wake()

    # Below: only the thread.

    def _run(self, *, is_connected: bool = False) -> None:
        """Keep a connection until the end; with ``is_connected``, beginning with the one that is there."""
        try:
            while not self._is_stopping and self._is_ours():
                try:
                    self._live(is_connected=is_connected)
                except TransportUnavailable as error:
                    if self._on_messages_lent is not None:
                        self._pass_on()  # what came before the end; nobody can be answered any more
                    if not self._is_stopping:
                        self._went_down(str(error))
                        self._waker.wait(self._backoff.next_s())
                is_connected = False
        finally:
            if self._is_ours():
                self._is_settled.set()
                self._waker.close()

    def _is_ours(self) -> bool:
        """Whether the connection has not been passed on to another thread."""
        return self._threads[-1] is threading.current_thread()

    def _relieve(self) -> None:
        """Go on in a new thread.  Called while the present one is lent, so nobody uses the connection."""
        successor = self._new_thread(functools.partial(self._run, is_connected=True))
        former = self._threads
        self._threads = [thread for thread in former if thread.is_alive()] + [successor]
        try:
            start_thread(successor)
        except LimitReached:
            self._threads = former  # the present one goes on when it comes back
            raise

    def _went_down(self, reason: str) -> None:
        """Report a loss, or that the first attempt failed.  When later ones fail for another reason, it is logged."""
        self._tally.add("link_failures")
        before, self._down_reason = self._down_reason, reason
        if before is None:
            self._on_report(Disconnected(self.address, reason))
        elif before != reason:
            LOG.warning("%s: %s", self.address, reason)
        self._is_settled.set()

    def _live(self, *, is_connected: bool) -> None:
        """One connection, from its beginning, or from where it is, to its end or until it is passed on.

        Raises TransportUnavailable when it is lost.
        """
        if not is_connected:
            self._wire = Wire(self._settings)
        try:
            if not is_connected:
                self._poller = select.poll()
                self._wire_descriptor = self._wire.fileno()
                self._poller.register(self._wire_descriptor, select.POLLIN)
                self._poller.register(self._waker, select.POLLIN)
                self._begin()
            while not self._is_stopping and not self._pass_on_lent():
                self._turn()
        finally:
            if self._is_ours():
                with self._lock:
                    self._is_up = self._takes_changes = False
                    if self._outbox:
                        self._tally.add("messages_dropped", len(self._outbox))
                        self._outbox.clear()
                self._wire.close()

    def _begin(self) -> None:
        with self._lock:
            filters = list(self._filters)
            self._changes.clear()
            self._takes_changes = True
        self._expected.clear()
        self._users.clear()
        self._reply_targets.clear()
        self._sources.clear()
        self._unsent.clear()
        self._messages.clear()
        self._heard_at = time.monotonic()
        self._subscribe(self._always)
        self._subscribe(self._optional, is_vital=False)
        for topic_filter in filters:
            self._subscribe(self._targets(topic_filter))
            self._pace()
        if self._reads_arrivals:
            self._read_arrivals()
        self._ping(Connected(self.address))
        self._flush()

    def _read_arrivals(self) -> None:
        """Ask which publisher came last, and which run of the server that is: an older copy of its data may lack one.

        It is executed after the subscriptions.  Where there is no note one is left, so that its loss is noticed.
        """
        self._newest_arrival = self._server_run = b""
        key = channels.arrivals_key(self._settings.channel_prefix)
        for command, on_value in (
            (channels.command(b"SET", key, os.urandom(8).hex().encode(), b"NX"), None),
            (channels.command(b"GET", key), self._note_arrival),
            (channels.command(b"INFO", b"server"), self._note_server),
        ):
            self._command(command, _Expected("a look at who has come", is_vital=False, on_value=on_value))

    def _note_arrival(self, answer: Any) -> None:
        self._newest_arrival = answer if isinstance(answer, bytes) else b""

    def _note_server(self, answer: Any) -> None:
        text = answer if isinstance(answer, bytes) else str(answer).encode()
        self._server_run = next((line for line in text.split() if line.startswith(b"run_id:")), b"")

    def _turn(self) -> None:
        """Wait for something to happen and deal with it."""
        self._listen()
        if self._changes:  # looked at without the lock: who adds something wakes us after it
            self._apply_changes()
        if self._outbox:
            self._empty_outbox()
        if not self._expected and time.monotonic() >= self._heard_at + self._settings.health_interval_s:
            self._ping(None)
        if self._unsent:
            self._flush()

    def _listen(self) -> None:
        """Wait for the server, for a wake or until something is due; read what came.

        The server is late only when nothing of it waits to be read: the receiver may have kept us from reading.
        """
        due = self._heard_at + self._settings.health_interval_s
        if self._expected:
            due = max(self._asked_at, self._heard_at) + self._settings.operation_timeout_s
        ready = dict(self._poller.poll(max(0.0, due - time.monotonic()) * 1000))
        is_readable = self._wire_descriptor in ready
        if len(ready) > is_readable:
            self._waker.clear()
        if is_readable:
            self._receive()
        elif self._expected and time.monotonic() >= due:
            raise TransportUnavailable(f"the server did not answer for {self._settings.operation_timeout_s} s")

    def _pace(self) -> None:
        """Let the server catch up before it is asked for more subscriptions."""
        if len(self._expected) < EXPECTED_MAX:
            return
        self._flush()
        while len(self._expected) >= EXPECTED_MAX // 2 and not self._is_stopping:
            self._listen()

    def _apply_changes(self) -> None:
        while True:
            with self._lock:
                if not self._changes:
                    return
                is_added, topic_filter = self._changes.popleft()
            if is_added:
                self._subscribe(self._targets(topic_filter))
                self._ping(Subscribed(self.address, topic_filter))
            else:
                self._unsubscribe(self._targets(topic_filter))
            self._pace()

    def _empty_outbox(self) -> None:
        with self._lock:
            messages = list(self._outbox)
            self._outbox.clear()
        for post in messages:
            self._listen_for_replies(post.reply)
            self.publish(post.channel, post.payload, post.on_reached)

    def _listen_for_replies(self, target: ChannelTarget) -> None:
        """Redis executes the subscription before what is published after it on the same connection."""
        if target in self._reply_targets:
            del self._reply_targets[target]
        else:
            self._subscribe([target], is_vital=False)
        self._reply_targets[target] = None
        if len(self._reply_targets) > REPLY_CHANNELS_MAX:
            oldest = next(iter(self._reply_targets))
            del self._reply_targets[oldest]
            self._unsubscribe([oldest])

    def _targets(self, topic_filter: str) -> list[ChannelTarget]:
        return channels.targets(self._settings.channel_prefix, topic_filter)

    def _subscribe(self, targets: Sequence[ChannelTarget], *, is_vital: bool = True) -> None:
        for target in targets:
            self._users[target] += 1
            if self._users[target] == 1:
                expected = _Expected(f"a subscription to {target.name!r}", is_vital, None if is_vital else target)
                self._command(channels.subscribe_command(target), expected)

    def _unsubscribe(self, targets: Sequence[ChannelTarget]) -> None:
        for target in targets:
            self._users[target] -= 1
            if not self._users[target]:
                del self._users[target]
                self._command(channels.unsubscribe_command(target), _Expected(f"leaving {target.name!r}"))

    def _ping(self, report: LinkReport | None) -> None:
        self._command(channels.PING, _Expected("PING", report=report))

    def _command(self, command: bytes, expected: _Expected) -> None:
        if not self._expected:
            self._asked_at = time.monotonic()
        self._expected.append(expected)
        self._unsent.append(command)

    def _flush(self) -> None:
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            self._wire.write(data)

    def _receive(self) -> None:
        """Read what is there, hand over the messages in one call, and note the answers."""
        answers = self._wire.receive()
        self._heard_at = time.monotonic()
        if self._messages:
            self._pass_on()
        for answer in answers:
            is_push = isinstance(answer, list)
            if is_push and answer[0] in (b"message", b"pmessage"):
                self._add_message(answer)
                continue
            if is_push:
                self._sources.clear()  # a subscription came or went: which copy of a message is the first may change
            self._pass_on()
            self._answered(answer)

    def _add_message(self, push: list[bytes]) -> None:
        """Keep one copy of each message.

        Redis sends a message once for each channel or pattern of the connection that it matches, all copies in a row.
        The subscription that brought the first message of a channel brings all of them, so copies by others are
        dropped; the choice holds until the subscriptions change.
        """
        source, channel, payload = push[-3], push[-2], push[-1]  # a plain message has its kind in the pattern's place
        if self._sources.setdefault(channel, source) == source:
            self._messages.append((channel, payload))
        if len(self._sources) > SOURCES_MAX:
            self._sources.clear()  # at worst one copy too many, which the core drops

    def _pass_on(self) -> None:
        """Hand over the messages read so far."""
        messages, self._messages = self._messages, []
        if messages and not self._is_stopping:
            self._on_messages(messages)

    def _pass_on_lent(self) -> bool:
        """Hand over the messages read so far, and this thread with them.  True when it was replaced meanwhile."""
        if not self._messages or self._on_messages_lent is None:
            self._pass_on()
            return False
        messages, self._messages = self._messages, []
        return self._on_messages_lent(messages, self._relieve)

    def _answered(self, answer: Any) -> None:
        if not self._expected:
            raise TransportUnavailable(f"the server answered a question that nobody asked: {str(answer)[:80]!r}")
        expected = self._expected.popleft()
        if isinstance(answer, ServerError):
            if expected.is_vital:
                raise TransportUnavailable(f"the server refused {expected.what}: {answer}")
            self._tally.add("messages_refused")
            if expected.target is not None:  # so that it is asked for again when it is needed again
                self._users.pop(expected.target, None)
                self._reply_targets.pop(expected.target, None)
                LOG.info("%s refused %s: %s", self.address, expected.what, answer)
                return
            self._log_refusal("%s refused %s: %s", self.address, expected.what, answer)
        elif expected.report is not None:
            self._make_report(expected.report)
        elif expected.on_reached is not None and isinstance(answer, int):
            expected.on_reached(answer)
        elif expected.on_value is not None:
            expected.on_value(answer)

    def _make_report(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            with self._lock:
                self._is_up = True
            self._down_reason = None
            self._backoff.reset()
            if self._newest_arrival and self._server_run:
                report = Connected(report.address, (self._server_run + b" " + self._newest_arrival).decode())
        self._on_report(report)
        self._is_settled.set()
