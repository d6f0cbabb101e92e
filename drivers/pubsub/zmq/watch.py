"""Waiting for many ZeroMQ sockets at once, by their file descriptors.

``zmq_poll`` makes several system calls per socket before and after it sleeps, which shows in the latency of a single
frame.  This makes one, however many sockets there are, at the price of a rule.  The descriptor of a ZeroMQ socket
becomes readable when something has happened to the socket, not while there is something to read, and any use of the
socket may take that sign away.  So a handler must read until there is nothing left, or have its socket looked at again,
as code that uses a socket outside of its handler must.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable

Handler = Callable[[], bool]
"""Reads from a socket.  True: the thread was replaced meanwhile, and must leave all of this alone."""


class DescriptorWatch:
    """Descriptors and their handlers.  For one thread at a time."""

    def __init__(self) -> None:
        """Raises OSError when there is no descriptor left."""
        # Not poll: a process may have thousands of sockets, and poll looks at each of them every time.
        self._poll = select.epoll()
        self.handlers: dict[int, Handler] = {}
        self._ready: list[tuple[int, int]] = []
        """What is to be handled in this turn.  Kept here because another thread may have to go on with it."""
        self._unread: set[int] = set()

    def add(self, descriptor: int, handler: Handler) -> None:
        """Call ``handler`` in the next turn, and whenever the descriptor becomes readable."""
        if descriptor not in self.handlers:
            self._poll.register(descriptor, select.POLLIN)
        self.handlers[descriptor] = handler
        self._unread.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed."""
        if self.handlers.pop(descriptor, None) is not None:
            self._unread.discard(descriptor)
            self._poll.unregister(descriptor)

    def look_at(self, descriptors: Iterable[int]) -> None:
        """Call their handlers in the next turn: the sockets have been used."""
        self._unread.update(descriptors)

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Block until there may be something to read, or the time is over.

        Each item begins with a descriptor whose handler is to be called.  The list is to be emptied meanwhile.
        """
        if self._ready or self._unread:
            return self._look()
        self._ready = ready = self._poll.poll(timeout_s)
        return ready

    def _look(self) -> list[tuple[int, int]]:
        """The same without waiting: some descriptors are to be handled in any case."""
        unread = self._unread.union(descriptor for descriptor, _ in self._ready)  # which another thread has left behind
        self._unread.clear()
        self._ready = ready = self._poll.poll(0)
        ready.extend((descriptor, 0) for descriptor in unread.difference(descriptor for descriptor, _ in ready))
        return ready

    def close(self) -> None:
        self._poll.close()
