"""The receiving thread of all ZeroMQ subscribers of a process.  It owns their sockets and makes all calls to receivers.

Other threads leave commands for it and wake it.  It waits for all sockets at once, and has the links whose sockets
have something to read read it (`links.SubscriberLinks`).  One thread, one wait and one context of ZeroMQ, which has two
threads of its own, are enough for hundreds of subscribers.

A handler may lend the thread to the receiver that the frames are for, when nothing is half done.  When it stays away,
another thread goes on where it left off, and it ends when it comes back: a socket may change hands, but two never use
it at once.  So what a receiver does there never holds up other subscribers for long.

A publisher that is named by the name of a host has a context with all others on that host: ZeroMQ looks the name up in
a thread of the context, and stands still for as long as the resolver does not answer.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from heliograph_drivers.pubsub.zmq.access.descriptors import CONTEXT, check_room
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from heliograph_drivers.pubsub.zmq.watch import DescriptorWatch
from pubsub_api.driver_kit import Backoff, ReplaceableThread, Waker
from pubsub_api.errors import LimitReached
from pubsub_api.runtime import forking

if TYPE_CHECKING:
    from heliograph_drivers.pubsub.zmq.links import SubscriberLinks

LOG = logging.getLogger(__name__)

_SOCKETS_MAX = 32_768
"""Sockets in a context.  A link has up to four, one of them hidden; the default would end at 255 links."""
_RETRY_S, _RETRY_MAX_S = 0.01, 1.0
"""The pauses before receiving begins anew, after something that no link was the cause of."""


class ReceiveLoop:
    """The receiving thread and what it owns.  What is said to be for any thread may be called from any, the rest is its
    own."""

    def __init__(self) -> None:
        """Raises LimitReached."""
        check_room(CONTEXT, "a subscriber")
        self._waker = Waker()
        self.commands: deque[Callable[[], None]] = deque()
        """Left by other threads, or by a receiver to which this one was lent."""
        self._is_stopping = False
        self._contexts: dict[str, zmq.Context[Socket]] = {}
        self._members: dict[SubscriberLinks, None] = {}
        self.watch = DescriptorWatch()
        self.watch.add(self._waker.fd, self._on_wake)
        self._deadline: float | None = math.inf
        """Of all links; None: it has to be found."""
        self._thread = ReplaceableThread("zmq-subscriber", self._run)
        self.users = 0
        """Subscribers that have entered and not left.  Guarded by `SharedLoop`."""

    # -- for any thread

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

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the one that receives: what it waits for must not need that thread."""
        return self._thread.is_owner

    def replace_thread(self) -> threading.Thread:
        """Go on in another thread, while this one is lent.  Returns the former.  Raises LimitReached."""
        former = self._thread.owner
        self._thread.replace()
        return former

    def post(self, command: Callable[[], None]) -> None:
        """Have the thread call ``command``, after those posted before."""
        self.commands.append(command)
        self._waker.wake()

    def stop(self) -> None:
        """Have the thread end.  Waits for it, unless it is the calling one."""
        self._is_stopping = True
        self._waker.wake()
        self._thread.join()

    # -- the thread, for links

    def enter(self, member: SubscriberLinks) -> None:
        self._members[member] = None

    def leave(self, member: SubscriberLinks) -> None:
        self._members.pop(member, None)
        self.deadlines_changed()

    def deadlines_changed(self) -> None:
        """A link has another deadline, or may have."""
        self._deadline = None

    def context_of(self, host_name: str) -> zmq.Context[Socket]:
        """The context for links to that host, empty for those to addresses.  Raises LimitReached."""
        context = self._contexts.get(host_name)
        if context is None:
            check_room(CONTEXT, f"a link to the host {host_name or 'with an address'}")
            context = self._contexts[host_name] = zmq.Context()
            context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        return context

    # -- the thread

    def _run(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        try:
            while not self._is_stopping:
                try:
                    is_replaced = self._turn()
                    backoff.reset()
                    while not (is_replaced or self._is_stopping):
                        is_replaced = self._turn()
                    return
                except Exception as error:
                    LOG.exception("receiving was broken off; all links of the process are opened again")
                    if not self._thread.is_owner:
                        return
                    self._begin_anew(error, backoff.next_s())
        finally:
            if self._thread.is_owner:
                self._release()

    def _begin_anew(self, error: Exception, pause_s: float) -> None:
        """A member handles what goes wrong with its links.  What comes here is of no member, so all begin anew."""
        time.sleep(pause_s)  # what fails at once each time must not take a whole core
        self._deadline = None
        self._waker.wake()  # commands may have been left
        for member in list(self._members):
            member.fail_all(error)

    def _release(self) -> None:
        self._is_stopping = True
        for member in list(self._members):
            member.release()
        for context in self._contexts.values():
            context.term()
        self.watch.close()
        self._waker.close()

    def _turn(self) -> bool:
        """Wait for something to happen, and handle it.  True when the thread was replaced meanwhile."""
        if (due := self._deadline) is None:
            due = self._deadline = min((member.deadline for member in self._members), default=math.inf)
        watch = self.watch
        ready = watch.wait(None if due == math.inf else max(0.0, due - time.monotonic()))
        while ready:
            # They come first: a filter registered before an echo is read shall not be left out of `Connected`.
            if self.commands:
                self._obey()
            handler = watch.handlers.get(ready.pop()[0])  # None: it has been closed since
            if handler is not None and handler():
                return True
        if due != math.inf and due <= time.monotonic():
            for member in list(self._members):
                member.handle_deadlines(time.monotonic())
        return False

    def _on_wake(self) -> bool:
        self._waker.clear()  # before looking: a command that comes after the look wakes us again
        self._obey()
        return False

    def _obey(self) -> None:
        while self.commands:
            self.commands.popleft()()


class SharedLoop:
    """The loop of this process: begins with the first subscriber and ends with the last."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        if (inherited := getattr(self, "_loop", None)) is not None:
            forking.set_aside(inherited)
        self._lock = threading.Lock()
        self._loop: ReceiveLoop | None = None

    def enter(self) -> ReceiveLoop:
        """Raises LimitReached."""
        with self._lock:
            if self._loop is None or not self._loop.is_alive:
                loop = ReceiveLoop()
                loop.start()
                self._loop = loop
            self._loop.users += 1
            return self._loop

    def leave(self, loop: ReceiveLoop) -> None:
        """Waits for the thread when it was the last, unless that is the calling one."""
        with self._lock:
            loop.users -= 1
            is_last = not loop.users
            if is_last and self._loop is loop:
                self._loop = None
        if is_last:
            loop.stop()


SHARED_LOOP = SharedLoop()
