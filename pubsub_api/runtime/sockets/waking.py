"""Waking a thread that waits in poll, select or epoll."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from pubsub_api.runtime import forking


class Waker:
    """A descriptor that `wake` makes readable, and that stays readable until `clear`.

    `wake` may be called from any thread and from signal handlers, also after `close`; several calls before the thread
    looks wake it once.  In a forked child it does nothing: the waiting thread is in the parent.
    """

    def __init__(self) -> None:
        """Raises OSError when there is no descriptor left."""
        self._is_closed = False
        self._lock = threading.RLock()  # a signal handler may interrupt `wake` in the same thread
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        forking.register(self)

    def fileno(self) -> int:
        return self.fd

    def wake(self) -> None:
        # Without the lock, `close` could free the number for another file between the check and the write.
        with self._lock:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # it is full, and so it is readable
                    os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Call this before looking for work: work that comes after the look makes the descriptor readable again."""
        with contextlib.suppress(BlockingIOError):  # it was not woken
            os.eventfd_read(self.fd)

    def wait(self, timeout_s: float) -> bool:
        """Block until `wake` is called, and clear the descriptor; False when the time is over."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return False
        self.clear()
        return True

    def close(self) -> None:
        """No thread may wait for it any more.  Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.fd)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # another thread may have held it
        self._is_closed = True
