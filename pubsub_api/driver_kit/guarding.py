"""A receiver and a query handler that never raise: a driver uses them in place of those that it was given.

The contract forbids both to raise.  If one does, a driver must neither stop, which would be silence, nor hide it: the
exception is logged with its traceback and counted, and the driver goes on.  The receiver has lost what it was given,
unless it finds out by its own numbers.  The query stays unanswered, or its answer ends early, and the subscriber asks
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from pubsub_api.driver import LendingReceiver, LinkReport, QueryHandler, Receiver

LOG = logging.getLogger(__name__)


class GuardedReceiver:
    """See the module's description.  A `Receiver`, and a `LendingReceiver` where ``can_borrow`` is true."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.lend = receiver.on_frames_lent if isinstance(receiver, LendingReceiver) else None
        """`on_frames_lent` of the receiver, None if it has none.  For a driver that calls `note_error` if it raises."""
        self.can_borrow = self.lend is not None
        """The receiver can use a thread that the driver lends.  Otherwise `on_frames_lent` does what `on_frames` does.
        """
        self._lock = threading.Lock()
        self.errors = 0
        """Calls in which the receiver raised."""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        self._call(self._receiver.on_frames, frames)

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        self._call(self._receiver.on_foreign, topic, payload)

    def on_link(self, report: LinkReport) -> None:
        self._call(self._receiver.on_link, report)

    def _call(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception:  # noqa: BLE001  logged there
            self.note_error()

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        """As that of the receiver.  True also when the receiver has replaced the thread and raised after that."""
        if self.lend is None:
            self.on_frames(frames)
            return False
        is_relieved = False

        def note_relief() -> None:
            nonlocal is_relieved
            relieve()
            is_relieved = True

        try:
            return self.lend(frames, note_relief)
        except Exception:  # noqa: BLE001  logged there
            self.note_error()
            return is_relieved

    def note_error(self) -> None:
        """Log and count the exception that is being handled."""
        LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
        with self._lock:  # while a thread is lent, another thread of the driver may call, too
            self.errors += 1


class GuardedHandler:
    """See the module's description.  A `QueryHandler`.

    The handler is called when the driver takes the first reply.  So an exception of the handler is caught here, whether
    it raises at once or between two replies; an exception of the driver, which cannot send a reply, is not.
    """

    def __init__(self, handler: QueryHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self.errors = 0
        """Queries on which the handler raised."""

    def __call__(self, query: bytes) -> Iterator[bytes]:
        try:
            yield from self._handler(query)
        except Exception:
            LOG.exception("the query handler raised, which its contract forbids; the driver goes on")
            with self._lock:
                self.errors += 1
