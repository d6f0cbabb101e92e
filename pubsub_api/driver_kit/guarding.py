"""A receiver and a query handler that never raise, for drivers to hold in place of those they were given.

The contract forbids both to raise.  When one does so all the same, a driver must neither die of it, which would be
silence, nor hide it: the exception is logged with its traceback and counted, and the driver goes on with what comes
next.  What the call brought is lost to the receiver, unless its own numbers tell; a query stays unanswered, or its
answer ends early, and the asker asks again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from pubsub_api.driver import LendingReceiver, LinkReport, QueryHandler, Receiver

LOG = logging.getLogger(__name__)


class GuardedReceiver:
    """See the module's description.  As a `Receiver`, and as a `LendingReceiver` where ``lends`` is true."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._lender = receiver if isinstance(receiver, LendingReceiver) else None
        self.lends = self._lender is not None
        """The receiver can use the driver's own thread.  Otherwise `on_frames_lent` is `on_frames`."""
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
        except Exception:
            LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
            self._count()

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        """As the receiver's own, which may have had the thread replaced before it raised: the answer says so."""
        if self._lender is None:
            self.on_frames(frames)
            return False
        is_relieved = False

        def note_relief() -> None:
            nonlocal is_relieved
            relieve()
            is_relieved = True

        try:
            return self._lender.on_frames_lent(frames, note_relief)
        except Exception:
            LOG.exception("the receiver raised, which its contract forbids; the driver goes on")
            self._count()
            return is_relieved

    def _count(self) -> None:
        """Two threads of a driver may come here at once, where one of them is lent."""
        with self._lock:
            self.errors += 1


class GuardedHandler:
    """See the module's description.  As a `QueryHandler`.

    Nothing is asked of the handler before the driver begins to take the replies, so that an exception of either is
    caught here, and one of the driver, which cannot send a reply, is not.
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
