"""Waiting for many ZeroMQ sockets at once, by their file descriptors.

``zmq_poll`` makes several system calls per socket before and after it sleeps, which shows in the latency of a single
frame.  This makes one, however many sockets there are, at the price of a rule.  The descriptor of a ZeroMQ socket
becomes readable when something has happened to the socket, not while there is something to read, and any use of the
socket may take that sign away.  So a handler must read until there is nothing left or say that it has not, and whoever
uses a socket outside its handler must have it looked at.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable

Handler = Callable[[], bool]
"""Reads from a socket.  True: there may be more to read."""

_HAS_EPOLL = hasattr(select, "epoll")


class DescriptorWatch:
    """Descriptors and their handlers.  For one thread at a time."""

    def __init__(self) -> None:
        """Raises OSError when there is no descriptor left."""
        # A process may have thousands of sockets, and poll looks at each of them every time.  Only Linux has epoll.
        self._poll = select.epoll() if _HAS_EPOLL else select.poll()
        self._handlers: dict[int, Handler] = {}
        self.ready: list[int] = []
        """What is to be handled in this turn.  Kept here because another thread may have to go on with it."""
        self._unread: set[int] = set()
        self._again = -1
        """The descriptor whose handler was called last in this turn and wants to be called once more."""

    def add(self, descriptor: int, handler: Handler) -> None:
        """Call ``handler`` in the next turn, and whenever the descriptor becomes readable."""
        if descriptor not in self._handlers:
            self._poll.register(descriptor, select.POLLIN)
        self._handlers[descriptor] = handler
        self._unread.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._unread.discard(descriptor)
            self._poll.unregister(descriptor)

    def look_at(self, descriptors: Iterable[int]) -> None:
        """Call their handlers in the next turn: the sockets have been used."""
        self._unread.update(descriptors)

    def wait(self, timeout_s: float | None) -> None:
        """Block until there may be something to read, or the time is over.  `handle` follows, while any is `ready`."""
        unread = self._unread
        if self.ready:
            unread.update(self.ready)  # what another thread has left behind
        if unread:
            timeout_s = 0
        elif timeout_s is not None and not _HAS_EPOLL:
            timeout_s *= 1000
        self.ready = ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s)]
        self._again = -1
        if unread:
            ready.extend(unread.difference(ready))
            unread.clear()

    def handle(self) -> None:
        """Call the next handler of this turn.

        One that may have more to read is called a second time in the same turn, next: mostly it finds nothing, and
        another turn would ask the system for that.
        """
        descriptor = self.ready.pop()
        handler = self._handlers.get(descriptor)  # None: it has been closed since
        if handler is not None and handler():
            if descriptor == self._again:
                self._unread.add(descriptor)
            else:
                self._again = descriptor
                self.ready.append(descriptor)

    def close(self) -> None:
        if _HAS_EPOLL:
            self._poll.close()  # type: ignore[union-attr]
