"""From the bus into the log, for the groups that this process leads.

A declared group keeps its events only if somebody records them.  The process that leads the group does, unless
``[groups] record`` says that another service records; the log holds an event once, however many record it.  What was
published since the group was declared, while one leader had gone and the next had not begun, is fetched from the caches
of the bus.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from durable_log.log_api import LogApi
from durable_log.recorder import Recorder, RecorderStatistics
from pubsub_api.core.settings import History
from pubsub_api.errors import HeliographError
from shared_subscriptions.core.declaration import Declaration

if TYPE_CHECKING:
    from pubsub_api import Session

LOG = logging.getLogger(__name__)


class Recording:
    """Records while this process leads.  `on_rule` is called by offices, one thread per group."""

    def __init__(self, session: Session, log: LogApi) -> None:
        self._session = session
        self._log = log
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}

    def on_rule(self, group: str, declaration: Declaration | None) -> None:
        """This process begins to lead the group, or ends."""
        with self._lock:
            former = self._recorders.pop(group, None)
        if former is not None:
            former.close()
        if declaration is None:
            return
        try:
            recorder = Recorder(
                self._session, self._log, [declaration.topic_filter], history=History(since=declaration.declared_ns)
            )
        except HeliographError as error:
            LOG.error("Group %s: its events are not recorded by this process: %s", group, error)
            return
        with self._lock:
            self._recorders[group] = recorder

    def wait_ready(self, *, timeout_s: float) -> None:
        """Return when what this process has to record is recorded from now on.  Raises WaitTimeout."""
        with self._lock:
            recorders = list(self._recorders.values())
        for recorder in recorders:
            recorder.wait_ready(timeout_s)

    def statistics(self) -> dict[str, RecorderStatistics]:
        """By group."""
        with self._lock:
            return {group: recorder.statistics() for group, recorder in self._recorders.items()}
