"""From the bus into the log, for the groups that this process leads.

A declared group keeps its events only if somebody records them.  The process that leads the group does, unless
``[groups] record`` says that another service records; the log holds an event once, however many record it.  What was
published while one leader had gone and the next had not begun is fetched from the caches of the bus.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from durable_log.errors import LogError
from durable_log.log_api import LogApi
from pubsub_api.core.instream import Delivery
from pubsub_api.core.resync import Resync
from pubsub_api.core.settings import History
from pubsub_api.errors import Closed
from shared_subscriptions.core.declaration import Declaration

if TYPE_CHECKING:
    from pubsub_api import Session, Subscriber

LOG = logging.getLogger(__name__)

_RETRY_S = 0.5


class Recording:
    """Records while this process leads.  `on_rule` is called by offices, one thread per group."""

    def __init__(self, session: Session, log: LogApi) -> None:
        self.recorded = 0
        """Events that were stored."""
        self.repeated = 0
        """Events that the log held already."""
        self.lost = 0
        """Events that the bus could not deliver any more, nor any cache: they are not in the log."""
        self._session = session
        self._log = log
        self._lock = threading.Lock()
        self._subscribers: dict[str, Subscriber] = {}
        self._stop = threading.Event()

    def on_rule(self, group: str, declaration: Declaration | None) -> None:
        """This process begins to lead the group, or ends."""
        with self._lock:
            former = self._subscribers.pop(group, None)
        if former is not None:
            if not self._subscribers:
                self._stop.set()
            former.close()
        if declaration is None:
            return
        self._stop.clear()
        history = History() if self._session.capabilities.queries else None
        try:
            subscriber = self._session.subscriber(
                [declaration.topic_filter], on_frames=self._on_frames, on_resync=self._on_resync, history=history
            )
        except Closed:
            return  # the session is being closed, and this with it
        with self._lock:
            self._subscribers[group] = subscriber

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        """Store what came.  While the log does not answer the frames wait in the subscriber's queue, which has a bound
        of its own: beyond it, loss is told by a resync and counted."""
        frames = [frame for frame, _, _ in deliveries]
        while not self._stop.is_set():
            try:
                done = self._log.append(frames)
            except Closed:
                return
            except LogError as error:
                LOG.warning("Recording: the log does not take events now: %s", error)
                self._stop.wait(_RETRY_S)
            else:
                self.recorded += done.events
                self.repeated += done.duplicates
                return

    def _on_resync(self, resync: Resync) -> None:
        missing = sum(lost.last - lost.first + 1 for lost in resync.lost)
        if missing:
            self.lost += missing
            LOG.error("Recording: %d events were lost on the bus and are not in the log", missing)
