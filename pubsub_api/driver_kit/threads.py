"""Threads of a driver: waiting for their end, and the one that is replaced while the receiver uses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pubsub_api.errors import LimitReached
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)


def join_thread(thread: threading.Thread | None, timeout_s: float | None = None) -> None:
    """Wait until a thread has ended, unless it is the calling one or never began.  Logs one that outlasts the time."""
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return
    thread.join(timeout_s)
    if thread.is_alive():
        LOG.warning(
            "thread %s does not end: a callback, the name resolution or the transport's library blocks it", thread.name
        )


def _nothing() -> None:
    """What remains to be run when all is over."""


class ReplaceableThread:
    """A thread that has a connection and may be lent to a `LendingReceiver`, with `replace` as its ``relieve``.

    ``run`` is the body of the first thread and of each that replaces it.  It must return, and leave the connection
    alone, when `is_owner` has become False: then a successor uses the connection.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._threads = [self._new_thread()]
        """The last one is the owner; the others were replaced and end when the receiver lets them go."""

    def start(self) -> None:
        """Raises LimitReached."""
        start_thread(self._threads[0])

    def replace(self) -> None:
        """Go on in a new thread.  Call it while the owner is lent, so that nothing uses the connection.

        Raises LimitReached; then the present thread stays the owner.
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
        """The one that has not been replaced."""
        return self._threads[-1]

    @property
    def is_owner(self) -> bool:
        """Whether the calling thread has not been replaced."""
        return self.owner is threading.current_thread()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is one of these, replaced or not."""
        return threading.current_thread() in self._threads

    @property
    def has_started(self) -> bool:
        return self._threads[0].ident is not None

    @property
    def is_alive(self) -> bool:
        return self._threads[-1].is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until every thread has ended, except the calling one, for ``timeout_s`` each."""
        waited: set[threading.Thread] = set()
        while rest := [thread for thread in self._threads if thread not in waited]:  # one more may come meanwhile
            join_thread(rest[0], timeout_s)
            waited.add(rest[0])
        if self.has_started and not any(thread.is_alive() for thread in waited):
            # It refers to the connection, which refers to us: a circle would keep the handles of a foreign library.
            self._run = _nothing

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=self._name, daemon=True)
