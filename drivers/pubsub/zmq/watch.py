"""Waiting for many ZeroMQ sockets at once, by their file descriptors.

``zmq_poll`` makes several system calls per socket before and after it sleeps, which shows in the latency of a single
frame.  This makes one, however many sockets there are, at the price of a rule.  The descriptor of a ZeroMQ socket
becomes readable when something has happened to the socket, not while there is something to read, and any use of the
socket may take that sign away.  So a handler must read until there is nothing left or say that it has not, and whoever
uses a socket outside its handler must have it looked at.
"""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[], bool]
"""Reads from a socket.  True: there may be more to read."""


class DescriptorWatch:
    """Descriptors and their handlers.  For one thread."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._unread: set[int] = set()

    def add(self, descriptor: int, handler: Handler) -> None:
        """Call ``handler`` in the next turn, and whenever the descriptor becomes readable."""
        self._handlers[descriptor] = handler
        self._unread.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def look_at_all(self) -> None:
        """Call every handler in the next turn: their sockets have been used."""
        self._unread.update(self._handlers)

    def wait(self, timeout_ms: int | None) -> dict[int, int]:
        """Block until there may be something to read, or the time is over.  To be passed to `handle`."""
        unread = self._unread
        ready = dict(self._poll.poll(0 if unread else timeout_ms))
        if unread:
            ready.update(dict.fromkeys(unread, select.POLLIN))
            self._unread = set()
        return ready

    def handle(self, ready: dict[int, int]) -> None:
        for descriptor in ready:
            handler = self._handlers.get(descriptor)  # None: it has been closed since
            if handler is not None and handler():
                self._unread.add(descriptor)
