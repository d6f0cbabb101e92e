"""The receiving thread of a ZeroMQ subscriber.  It owns the sockets of all links and makes all calls to the receiver.

Other threads leave commands for it and wake it.  It reads what is there, a burst at a time, and passes frames on in one
call per burst.  The first frame of a burst is passed on by itself, before it is known whether there are more: the only
frame, unless there is a flood, should not wait for that question.

Between two turns, when nothing is under way, the thread is lent to the receiver.  When it stays away, another thread
goes on where it left off, and it ends when it comes back: a socket may change hands, but two never use it at once.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

import zmq
from oslo_config import cfg

from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.access.descriptors import CONTEXT, check_room
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from heliograph_drivers.pubsub.zmq.link import ZmqLink
from heliograph_drivers.pubsub.zmq.options import RECEIVE_HWM
from heliograph_drivers.pubsub.zmq.watch import DescriptorWatch
from heliograph_drivers.pubsub.zmq.wire import NUL, SYNC, subscription_prefixes
from pubsub_api.core.frame import PREFIX as FRAME_PREFIX
from pubsub_api.core.frame import is_frame
from pubsub_api.core.topics import check_topic
from pubsub_api.driver import Disconnected, LinkReport
from pubsub_api.driver_kit import GuardedReceiver, ReplaceableThread, Tally, UseCounts, Waker
from pubsub_api.errors import InvalidTopic, LimitReached

LOG = logging.getLogger(__name__)

_NOBLOCK = zmq.NOBLOCK
_BURST_FRAMES = 128
"""Frames read from one link before they are passed on and the other links get a turn."""
_SOCKETS_MAX = 16_384
"""Sockets in the context.  A link has up to four, one of them hidden; the default would end at 255 links."""


class ReceiveLoop:
    """The receiving thread and what it owns.  `post` and `stop` may be called from any thread, the rest is its own."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve, receiver: GuardedReceiver, tally: Tally) -> None:
        self._conf = conf
        self._curve = curve
        self._receiver = receiver
        self._tally = tally
        check_room(CONTEXT, "a subscriber")
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        self._waker = Waker()
        self._commands: deque[Callable[[], None]] = deque()
        self._is_stopping = False
        self._links: dict[str, ZmqLink] = {}
        self._prefixes: UseCounts[bytes] = UseCounts()
        self._watch = DescriptorWatch()
        self._watch.add(self._waker.fd, self._on_wake)
        self._frames: list[bytes] = []
        # What a lost link may still hold.  If ZeroMQ has connected again by itself, more comes, without an end.
        self._drain_bursts_max = 2 + RECEIVE_HWM // _BURST_FRAMES
        self.responders = 0
        """Links whose publisher answers queries.  Read by other threads."""
        self._thread = ReplaceableThread("zmq-subscriber", self._run)

    # -- called from any thread

    def start(self) -> None:
        """Raises LimitReached, and leaves nothing open then."""
        try:
            self._thread.start()
        except LimitReached:
            self._release()
            raise

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def join(self) -> None:
        """Wait until every thread has ended, except the calling one."""
        self._thread.join()

    def post(self, command: Callable[[], None]) -> None:
        """Have the thread call ``command``, after those posted before."""
        self._commands.append(command)
        self._waker.wake()

    def stop(self) -> None:
        """Have the thread end.  The receiver is not called again, except that a call under way is finished."""
        self._is_stopping = True
        self._waker.wake()

    # -- commands

    def add_filter(self, topic_filter: str) -> None:
        prefixes = self._prefixes.add(subscription_prefixes(topic_filter))
        for link in self._links.values():
            link.subscribe(topic_filter, prefixes, time.monotonic())

    def remove_filter(self, topic_filter: str) -> None:
        prefixes = self._prefixes.remove(subscription_prefixes(topic_filter))
        for link in self._links.values():
            link.unsubscribe(topic_filter, prefixes)

    def add_link(self, address: str) -> None:
        self._links[address] = ZmqLink(self._context, self._conf, self._curve, address, self._tally)
        self._open(self._links[address])

    def remove_link(self, address: str) -> None:
        link = self._links.pop(address)
        was_up = link.is_up
        self._remove_sockets(link)
        link.close()
        self._count_responders()
        if was_up:
            self._report([Disconnected(address, "the address was unregistered")])

    def ask(self, query: bytes) -> None:
        for link in self._links.values():
            link.ask(query)
        self.look_for_responders()

    def look_for_responders(self) -> None:
        for link in self._links.values():
            link.look_for_responder(time.monotonic())

    # -- the thread

    def _run(self) -> None:
        is_relieved = False
        try:
            while not (self._is_stopping or is_relieved):
                self._turn()
                is_relieved = self._pass_on_lent()
        except zmq.ZMQError as error:
            LOG.exception("receiving has stopped")
            self._report(Disconnected(link.address, f"{error}") for link in self._links.values() if link.is_up)
        finally:
            if self._thread.is_owner:
                self._release()

    def _release(self) -> None:
        self._is_stopping = True
        for link in self._links.values():
            link.close()
        self._context.term()
        self._waker.close()

    def _turn(self) -> None:
        """Wait for something to happen, and handle it."""
        wait_ms = self._wait_ms()
        ready = self._watch.wait(wait_ms)
        # Commands come first: a filter registered before an echo is read shall not be left out of `Connected`.
        if self._waker.fd in ready:
            del ready[self._waker.fd]
            self._on_wake()
        self._watch.handle(ready)
        if wait_ms is not None:
            self._handle_deadlines()

    def _on_wake(self) -> bool:
        self._waker.clear()  # before looking: a command that comes after the look wakes us again
        while self._commands:
            self._commands.popleft()()
            self._watch.look_at_all()
        return False

    def _wait_ms(self) -> int | None:
        deadlines = [link.deadline for link in self._links.values() if link.deadline is not None]
        if not deadlines:
            return None
        return max(0, 1 + int(1000 * (min(deadlines) - time.monotonic())))

    def _handle_deadlines(self) -> None:
        for link in self._links.values():
            if link.deadline is None or link.deadline > time.monotonic():
                continue
            if link.sub is None:
                self._open(link)
            else:
                reports = link.on_deadline(time.monotonic())
                self._watch.look_at_all()
                self._report(reports)

    def _open(self, link: ZmqLink) -> None:
        link.open(list(self._prefixes), time.monotonic())
        self._add_sockets(link)
        self._drop_if_lost(link)

    def _add_sockets(self, link: ZmqLink) -> None:
        """Watch the sockets that the link has now."""
        handlers = ((link.sub, self._on_data), (link.monitor, self._on_monitor), (link.dealer, self._on_replies))
        for sock, handler in handlers:
            if sock is not None:
                self._watch.add(sock.fileno(), functools.partial(handler, link))

    def _remove_sockets(self, link: ZmqLink) -> None:
        for sock in link.sockets:
            self._watch.remove(sock.fileno())

    def _drop_if_lost(self, link: ZmqLink) -> None:
        if link.lost is None:
            return
        for _ in range(self._drain_bursts_max if link.sub is not None else 0):
            is_more = self._read_burst(link)
            self._pass_on()
            if not is_more:
                break
        self._remove_sockets(link)
        reports = link.drop(time.monotonic())
        self._count_responders()
        self._report(reports)

    def _count_responders(self) -> None:
        self.responders = sum(link.dealer is not None for link in self._links.values())

    # -- what comes in

    def _on_data(self, link: ZmqLink) -> bool:
        is_more = self._read_burst(link)
        if link.lost is not None:
            self._drop_if_lost(link)
        return is_more

    def _on_monitor(self, link: ZmqLink) -> bool:
        link.read_monitor(time.monotonic())
        self._drop_if_lost(link)
        return False

    def _on_replies(self, link: ZmqLink) -> bool:
        assert link.dealer is not None
        is_more = True
        try:
            for _ in range(_BURST_FRAMES):
                parts = link.dealer.recv_multipart(_NOBLOCK)
                if len(parts) == 1 and is_frame(parts[0]):
                    self._frames.append(parts[0])
                else:
                    self._tally.add("not_frames")
                    LOG.debug("%s: an answer of %d parts that is no frame was dropped", link.address, len(parts))
        except zmq.Again:
            is_more = False
        return is_more

    def _read_burst(self, link: ZmqLink) -> bool:
        """Collect frames from a link: one, and when called again, all that follow.  False when nothing more is there.

        The usual message costs two reads and two looks at bytes.  A read that finds nothing costs several times more,
        so after the first message a poll asks whether there are more.

        Whether a message has exactly two parts is not asked, which would cost more than a read.  A message of another
        shape shows itself by what its parts look like, at the latest in the message after it, and `_sort_out` then
        reads on to the end of that one.
        """
        assert link.sub is not None
        if link.is_in_burst and not zmq.zmq_poll(link.incoming, 0):
            link.is_in_burst = False
            return False
        frames_max = _BURST_FRAMES if link.is_in_burst else 1
        if len(self._frames) >= frames_max:
            self._pass_on()
        link.is_in_burst = True
        recv, frames = link.sub.recv, self._frames
        topic: bytes | None = None
        try:
            while len(frames) < frames_max:
                topic = None
                topic = recv(_NOBLOCK)
                if topic[-1:] != NUL:
                    frames = self._sort_out(link, [topic])
                    continue
                payload = recv(_NOBLOCK)
                if not payload.startswith(FRAME_PREFIX):
                    frames = self._sort_out(link, [topic, payload])
                    continue
                frames.append(payload)
        except zmq.Again:
            link.is_in_burst = False
            if topic is not None:
                self._tally.add("not_frames")
                LOG.debug("%s: a message of one part was dropped", link.address)
            return False
        return True

    def _sort_out(self, link: ZmqLink, parts: list[bytes]) -> list[bytes]:
        """Handle a message that is not a topic with a frame, given the parts that were read.

        Returns the list to collect in from now on: the former may have been passed on.
        """
        assert link.sub is not None
        while link.sub.get(zmq.RCVMORE):
            parts.append(link.sub.recv())
        is_pair = len(parts) == 2
        if is_pair and parts[0].startswith(SYNC):
            self._on_echo(link, parts[0], parts[1])
        elif is_pair and not is_frame(parts[1]):
            self._on_foreign(link, parts[0], parts[1])
        else:
            # The tail of a message of more parts, or a message of one part with the next behind it: a frame is a frame.
            self._frames += filter(is_frame, parts[1:])
            self._tally.add("not_frames")
            LOG.debug("%s: a message of an unknown shape, %d parts", link.address, len(parts))
        return self._frames

    def _on_echo(self, link: ZmqLink, topic: bytes, payload: bytes) -> None:
        self._remove_sockets(link)
        reports = link.on_echo(topic, payload, time.monotonic())
        self._add_sockets(link)  # the socket for queries may be another now
        self._count_responders()
        self._pass_on()
        self._report(reports)

    def _on_foreign(self, link: ZmqLink, name: bytes, payload: bytes) -> None:
        try:
            topic = check_topic(name.removesuffix(NUL).decode())
        except (UnicodeDecodeError, InvalidTopic) as error:
            self._tally.add("foreign_dropped")
            LOG.debug("%s: a foreign message was dropped: %s", link.address, error)
            return
        self._pass_on()
        if not self._is_stopping:
            self._receiver.on_foreign(topic, payload)

    # -- calling the receiver

    def _pass_on(self) -> None:
        """Hand over the frames collected so far."""
        if self._frames:
            frames, self._frames = self._frames, []
            if not self._is_stopping:
                self._receiver.on_frames(frames)

    def _pass_on_lent(self) -> bool:
        """Hand over the frames collected so far, and this thread with them.  True when it was replaced meanwhile."""
        if not self._frames or not self._receiver.lends or self._is_stopping:
            self._pass_on()
            return False
        frames, self._frames = self._frames, []
        return self._receiver.on_frames_lent(frames, self._thread.replace)

    def _report(self, reports: Iterable[LinkReport]) -> None:
        self._pass_on()
        for report in reports:
            if not self._is_stopping:
                self._receiver.on_link(report)
