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
        self._ready: list[int] = []
        """What is to be handled in this turn.  Kept here because another thread may have to go on with it."""
        self._unread: set[int] = set()

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
        """Block until there may be something to read, or the time is over.  `handle` follows."""
        self._unread.update(self._ready)  # what another thread has left behind
        if self._unread:
            timeout_s = 0
        timeout = timeout_s if _HAS_EPOLL or timeout_s is None else timeout_s * 1000
        self._ready = [descriptor for descriptor, _ in self._poll.poll(timeout)]
        if self._unread:
            self._ready.extend(self._unread.difference(self._ready))
            self._unread.clear()

    def take(self, descriptor: int) -> bool:
        """Whether it is to be handled in this turn; the caller has done it then."""
        if descriptor not in self._ready:
            return False
        self._ready.remove(descriptor)
        return True

    def handle(self) -> Handler | None:
        """Call the next handler of this turn.  Returns it, None when all were called."""
        while self._ready:
            descriptor = self._ready.pop()
            handler = self._handlers.get(descriptor)  # None: it has been closed since
            if handler is not None:
                if handler():
                    self._unread.add(descriptor)
                return handler
        return None

    def close(self) -> None:
        if _HAS_EPOLL:
            self._poll.close()  # type: ignore[union-attr]
