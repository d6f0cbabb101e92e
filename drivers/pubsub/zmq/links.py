"""The links of one ZeroMQ subscriber: what it has registered, and what comes in for it.

Used by the receiving thread of the process alone (`loop.ReceiveLoop`), except where it says otherwise.  The first frame
is passed on by itself, and the thread lent with it, before it is known whether there are more: the only frame, unless
there is a flood, should not wait for that question.  Those that follow are passed on in one call per burst.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

import zmq
from oslo_config import cfg

from heliograph_drivers.pubsub.zmq import endpoints
from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.link import ZmqLink
from heliograph_drivers.pubsub.zmq.loop import ReceiveLoop
from heliograph_drivers.pubsub.zmq.options import RECEIVE_HWM
from heliograph_drivers.pubsub.zmq.wire import NUL, SYNC, subscription_prefixes
from pubsub_api.core.frame import PREFIX as FRAME_PREFIX
from pubsub_api.core.frame import is_frame
from pubsub_api.core.topics import check_topic
from pubsub_api.driver import Disconnected, LinkReport
from pubsub_api.driver_kit import THREADS, GuardedReceiver, Tally, UseCounts, join_thread
from pubsub_api.errors import InvalidTopic, LimitReached

LOG = logging.getLogger(__name__)

_NOBLOCK = zmq.NOBLOCK
_BURST_FRAMES = 128
"""Frames read from one link before they are passed on and the other links get a turn."""
_DRAIN_BURSTS_MAX = 2 + RECEIVE_HWM // _BURST_FRAMES
"""What a lost link may still hold.  If ZeroMQ has connected again by itself, more comes, without an end."""


class SubscriberLinks:
    """See the module's description.  A subscriber makes it, and enters the loop with it."""

    def __init__(
        self, loop: ReceiveLoop, conf: cfg.ConfigOpts, curve: Curve, receiver: GuardedReceiver, tally: Tally
    ) -> None:
        self._loop = loop
        self._conf = conf
        self._curve = curve
        self._receiver = receiver
        self._tally = tally
        self._links: dict[str, ZmqLink] = {}
        self._prefixes: UseCounts[bytes] = UseCounts()
        self._frames: list[bytes] = []
        self._is_leaving = False
        self._left = threading.Event()
        self._replaced: list[threading.Thread] = []
        """Threads that were lent and stayed away.  Each ends when the receiver lets it go."""
        self.deadline = math.inf
        """Of the link that has the next one."""
        self.responders = 0
        """Links whose publisher answers queries.  Read by other threads."""
        loop.post(functools.partial(loop.enter, self))

    # -- called from any thread

    @property
    def is_alive(self) -> bool:
        return self._loop.is_alive and not self._left.is_set()

    def post(self, command: Callable[..., None], *arguments: object) -> None:
        """Have the receiving thread call it, after those posted before."""
        self._loop.post(functools.partial(self._obey, command, *arguments))

    def close(self) -> None:
        """The receiver is not called again, except that a call under way is finished.

        Returns when it is, and everything is closed, unless the calling thread is needed for that.
        """
        self._is_leaving = True
        self._loop.post(self.release)
        if not self._loop.is_mine:
            while not self._left.wait(1.0) and self._loop.is_alive:
                pass
            for thread in self._replaced:
                join_thread(thread)

    # -- commands

    def _obey(self, command: Callable[..., None], *arguments: object) -> None:
        if self._is_leaving:
            return
        try:
            command(*arguments)
        except Exception as error:  # noqa: BLE001  this subscriber's alone, told and counted
            self.fail_all(error)
        for link in self._links.values():
            self._look_at(link)
        self._deadlines_changed()

    def add_filter(self, topic_filter: str) -> None:
        prefixes = self._prefixes.add(subscription_prefixes(topic_filter))
        for link in self._links.values():
            link.subscribe(topic_filter, prefixes, time.monotonic())

    def remove_filter(self, topic_filter: str) -> None:
        prefixes = self._prefixes.remove(subscription_prefixes(topic_filter))
        for link in self._links.values():
            link.unsubscribe(topic_filter, prefixes)

    def add_link(self, address: str) -> None:
        self._links[address] = ZmqLink(self._conf, self._curve, address, self._tally)
        self._open(self._links[address])

    def remove_link(self, address: str) -> None:
        link = self._links.pop(address)
        was_up = link.is_up
        self._close(link)
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

    def release(self) -> None:
        """Close everything, and leave the loop."""
        self._is_leaving = True
        for link in self._links.values():
            self._close(link)
        self._links.clear()
        self._loop.leave(self)
        self._left.set()

    # -- links

    def _deadlines_changed(self) -> None:
        """Call it when a link has another deadline, or may have."""
        self.deadline = min(
            (link.deadline for link in self._links.values() if link.deadline is not None), default=math.inf
        )
        self._loop.deadlines_changed()

    def handle_deadlines(self, now: float) -> None:
        for link in list(self._links.values()):
            if link.deadline is not None and link.deadline <= now:
                try:
                    self._handle_deadline(link, now)
                except Exception as error:  # noqa: BLE001  this link's alone, told and counted
                    self._fail(link, error)
                self._deadlines_changed()

    def _handle_deadline(self, link: ZmqLink, now: float) -> None:
        if link.sub is None:
            link.deadline = None
            self._open(link)
        else:
            reports = link.on_deadline(now)
            self._look_at(link)
            self._report(reports)

    def _look_at(self, link: ZmqLink) -> None:
        """Its sockets have been used outside of their handlers."""
        self._loop.watch.look_at(sock.fileno() for sock in link.sockets)

    def fail_all(self, error: Exception) -> None:
        """Open all links again: receiving was broken off in the middle of something."""
        for link in list(self._links.values()):
            if link.sub is not None:
                self._fail(link, error)

    def _fail(self, link: ZmqLink, error: Exception) -> None:
        """Its sockets cannot be used, or something was left half done: open others."""
        is_expected = isinstance(error, zmq.ZMQError)
        LOG.error("%s: %r; the link is opened again", link.address, error, exc_info=None if is_expected else error)
        link.lost = str(error) or repr(error)
        self._remove_sockets(link)
        self._report_drop(link)

    def _open(self, link: ZmqLink) -> None:
        if not endpoints.host_name(link.address):
            self._open_found(link, endpoints.uses_ipv6(link.address))
            return
        try:
            THREADS.run(functools.partial(self._look_up, link))
        except LimitReached as error:
            link.lost = str(error)
            self._drop_if_lost(link)

    def _look_up(self, link: ZmqLink) -> None:
        """On a shared thread: the resolver may take its time."""
        self.post(self._open_found, link, endpoints.uses_ipv6(link.address))

    def _open_found(self, link: ZmqLink, uses_ipv6: bool) -> None:
        if self._links.get(link.address) is link and link.sub is None:  # else it was removed meanwhile
            link.open(list(self._prefixes), time.monotonic(), self._loop.context_of, uses_ipv6=uses_ipv6)
            self._add_sockets(link)
            self._drop_if_lost(link)

    def _add_sockets(self, link: ZmqLink) -> None:
        """Watch the sockets that the link has now."""
        handlers = ((link.sub, self._on_data), (link.monitor, self._on_monitor), (link.dealer, self._on_replies))
        for sock, handler in handlers:
            if sock is not None:
                self._loop.watch.add(sock.fileno(), functools.partial(handler, link))

    def _remove_sockets(self, link: ZmqLink) -> None:
        for sock in link.sockets:
            self._loop.watch.remove(sock.fileno())

    def _close(self, link: ZmqLink) -> None:
        self._remove_sockets(link)
        link.close()

    def _drop_if_lost(self, link: ZmqLink) -> None:
        if link.lost is None:
            return
        for _ in range(_DRAIN_BURSTS_MAX if link.sub is not None else 0):
            is_more = self._read_burst(link)
            self._pass_on()
            if not is_more:
                break
        self._remove_sockets(link)
        self._report_drop(link)

    def _report_drop(self, link: ZmqLink) -> None:
        reports = link.drop(time.monotonic())
        self._deadlines_changed()
        self._count_responders()
        self._report(reports)

    def _count_responders(self) -> None:
        self.responders = sum(link.dealer is not None for link in self._links.values())

    # -- what comes in

    def _on_data(self, link: ZmqLink) -> bool:
        """Read a message, and all that have come with it.  Its usual shape, two parts, costs two looks at bytes.

        Whether a message has exactly two parts is not asked, which would cost more than a read.  A message of another
        shape shows itself by what its parts look like, at the latest in the message after it, and `_sort_out` then
        reads on to the end of that one.
        """
        assert link.sub is not None
        recv, name = link.sub.recv, None
        try:
            name = recv(_NOBLOCK)
            frame = recv(_NOBLOCK)
            if name[-1:] != NUL or not frame.startswith(FRAME_PREFIX):
                self._sort_out(link, [name, frame])
                self._pass_on()
                self._drop_if_lost(link)
            elif self._pass_on_lent([frame]):
                return True
            # A read that finds nothing costs several times more than to ask.
            return bool(zmq.zmq_poll(link.incoming, 0)) and self._read_on(link)
        except zmq.Again:
            if name is not None:
                self._drop_part(link)
        except Exception as error:  # noqa: BLE001  this link's alone, told and counted
            self._fail(link, error)
        return False

    def _read_on(self, link: ZmqLink) -> bool:
        """There is more: read a burst, and leave the rest to the next turn, after other links.  True: as `_on_data`."""
        if self._loop.commands:  # of the receiver: they may be about this very link
            self._look_at(link)
            return False
        is_more = self._read_burst(link)
        if link.lost is not None:
            self._drop_if_lost(link)
        elif is_more:
            self._look_at(link)
        frames, self._frames = self._frames, []
        return bool(frames) and self._pass_on_lent(frames)

    def _on_monitor(self, link: ZmqLink) -> bool:
        try:
            link.read_monitor(time.monotonic())
            self._deadlines_changed()
            self._drop_if_lost(link)
        except Exception as error:  # noqa: BLE001  this link's alone, told and counted
            self._fail(link, error)
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
        except Exception as error:  # noqa: BLE001  this link's alone, told and counted
            self._fail(link, error)
            return False
        if is_more:
            self._look_at(link)
        self._pass_on()
        return False

    def _read_burst(self, link: ZmqLink) -> bool:
        """Collect what there is, up to a burst.  False when nothing more is there."""
        assert link.sub is not None
        recv, frames, name = link.sub.recv, self._frames, None
        try:
            while len(frames) < _BURST_FRAMES:
                name = None
                name = recv(_NOBLOCK)
                if name[-1:] != NUL:
                    frames = self._sort_out(link, [name])
                    continue
                payload = recv(_NOBLOCK)
                if not payload.startswith(FRAME_PREFIX):
                    frames = self._sort_out(link, [name, payload])
                    continue
                frames.append(payload)
        except zmq.Again:
            if name is not None:
                self._drop_part(link)
            return False
        return True

    def _drop_part(self, link: ZmqLink) -> None:
        self._tally.add("not_frames")
        LOG.debug("%s: a message of one part was dropped", link.address)

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
        self._deadlines_changed()
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
        if not self._is_leaving:
            self._receiver.on_foreign(topic, payload)

    # -- calling the receiver

    def _pass_on(self) -> None:
        """Hand over the frames collected so far."""
        if self._frames:
            frames, self._frames = self._frames, []
            if not self._is_leaving:
                self._receiver.on_frames(frames)

    def _pass_on_lent(self, frames: list[bytes]) -> bool:
        """Hand over frames, and this thread with them.  True when it was replaced meanwhile."""
        lend = self._receiver.lend
        if lend is None or self._is_leaving:
            self._frames = frames
            self._pass_on()
            return False
        try:
            return lend(frames, self._relieve)
        except Exception:  # noqa: BLE001  logged there
            self._receiver.note_error()
            return not self._loop.is_mine

    def _relieve(self) -> None:
        """Called from any thread, while the receiving one is lent to this receiver.  Raises LimitReached."""
        for link in self._links.values():
            self._look_at(link)  # there may be more to read
        former = self._loop.replace_thread()
        self._replaced = [thread for thread in self._replaced if thread.is_alive()] + [former]

    def _report(self, reports: Iterable[LinkReport]) -> None:
        self._pass_on()
        for report in reports:
            if not self._is_leaving:
                self._receiver.on_link(report)
