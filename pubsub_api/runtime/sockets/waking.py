"""Waking a thread that sits in a poll, select or epoll."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading

from pubsub_api.runtime import forking

_ONE = (1).to_bytes(8, sys.byteorder)
"""What an eventfd counts by; a pipe takes it as it is."""
_READ_BYTES = 65_536
"""As much as a pipe holds."""


class Waker:
    """A descriptor that becomes readable when it is woken, and stays so until it is cleared.

    `wake` may be called from any thread and from signal handlers, also after `close`; what is woken twice before it
    looks is woken once.  In a forked child it does nothing: the thread that it would wake is the parent's.
    """

    def __init__(self) -> None:
        """Raises OSError when there is no descriptor left."""
        self._is_closed = False
        self._lock = threading.RLock()  # a handler of signals may interrupt another one
        if hasattr(os, "eventfd"):
            self.fd = self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:  # only Linux has it
            self.fd, self._wake_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._wake_fd, False)
        forking.register(self)

    def fileno(self) -> int:
        return self.fd

    def wake(self) -> None:
        # The lock keeps `close` from giving the number to another file between the look and the write.
        with self._lock:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # so full that it is readable
                    os.write(self._wake_fd, _ONE)

    def clear(self) -> None:
        """Do this before looking for what is to be done: what comes after the look wakes again."""
        with contextlib.suppress(BlockingIOError):  # nobody woke it
            os.read(self.fd, _READ_BYTES)

    def wait(self, timeout_s: float) -> bool:
        """Block until it is woken, and clear it; False when the time is over."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return False
        self.clear()
        return True

    def close(self) -> None:
        """No thread may be waiting any more.  Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for fd in {self.fd, self._wake_fd}:
                    os.close(fd)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # another thread may have held it
        self._is_closed = True
