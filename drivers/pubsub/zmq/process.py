"""What both ends of the ZeroMQ driver need to live with threads and forks: a wake-up call and a fork guard."""

from __future__ import annotations

import os
import socket
import threading

from pubsub_api.errors import Forked

_WAKE_BYTES_MAX = 4096


class ForkGuard:
    """Remembers the process that made an object.  A ZeroMQ context cannot be used, nor ended, in a forked child."""

    __slots__ = ("_what", "pid")

    def __init__(self, what: str) -> None:
        self.pid = os.getpid()
        self._what = what

    @property
    def is_child(self) -> bool:
        return os.getpid() != self.pid

    def check(self) -> None:
        """Raises Forked in a child."""
        if os.getpid() != self.pid:
            raise Forked(
                f"this {self._what} belongs to process {self.pid} and cannot be used after fork(); "
                f"open a new {self._what} in the child"
            )


class Waker:
    """Ends another thread's poll.  ``wake`` may be called from any thread, also after ``close``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._lock = threading.Lock()
        self.fd = self._reader.fileno()

    def wake(self) -> None:
        # The lock keeps close() from giving the descriptor away to somebody else between our look and our write.
        with self._lock:
            if self._writer.fileno() < 0:
                return
            try:
                self._writer.send(b"\0")
            except BlockingIOError:
                return  # The pipe is full of calls that have not been answered: one more says nothing new.

    def clear(self) -> None:
        try:
            while len(self._reader.recv(_WAKE_BYTES_MAX)) == _WAKE_BYTES_MAX:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        with self._lock:
            self._reader.close()
            self._writer.close()
