"""Threads of a driver: waiting for their end, and replacing one that is lent to the receiver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pubsub_api.errors import LimitReached
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)


def join_thread(thread: threading.Thread | None, timeout_s: float | None = None) -> None:
    """Block until a thread has ended, unless it is the calling one or was never started.

    Logs a warning when it has not ended after ``timeout_s``.
    """
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return
    thread.join(timeout_s)
    if thread.is_alive():
        LOG.warning(
            "thread %s does not end: a callback, name resolution or the library of the transport blocks it", thread.name
        )


def _do_nothing() -> None:
    pass


class ReplaceableThread:
    """A thread that owns a connection and may be lent to a `LendingReceiver`, with `replace` as ``relieve``.

    ``run`` is the body of the first thread and of each that replaces it.  Once `is_owner` is False, another thread uses
    the connection: ``run`` must not use it any more, and return.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._threads = [self._new_thread()]
        """The last one is the owner; the others were replaced, and end when the receiver has returned."""

    def start(self) -> None:
        """Raises LimitReached."""
        start_thread(self._threads[0])

    def replace(self) -> None:
        """Start a new thread, which becomes the owner.  Call it only while the owner is lent: it must not use the
        connection meanwhile.

        Raises LimitReached; then the owner stays the same.
        """
        successor = self._new_thread()
        former = self._threads
        self._threads = [thread for thread in former if thread.is_alive()] + [successor]
        try:
            start_thread(successor)
        except LimitReached:
            self._threads = former
            raise

    @property
    def owner(self) -> threading.Thread:
        """The thread that has not been replaced."""
        return self._threads[-1]

    @property
    def is_owner(self) -> bool:
        """Whether the calling thread is the owner."""
        return self.owner is threading.current_thread()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the owner or one that was replaced."""
        return threading.current_thread() in self._threads

    @property
    def has_started(self) -> bool:
        return self._threads[0].ident is not None

    @property
    def is_alive(self) -> bool:
        return self.owner.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Block until every thread except the calling one has ended, for at most ``timeout_s`` each."""
        joined: set[threading.Thread] = set()
        while rest := [thread for thread in self._threads if thread not in joined]:  # `replace` may add one meanwhile
            join_thread(rest[0], timeout_s)
            joined.add(rest[0])
        if self.has_started and not any(thread.is_alive() for thread in joined):
            # It refers to the connection, which refers to this object: the cycle would keep foreign handles alive.
            self._run = _do_nothing

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=self._name, daemon=True)
