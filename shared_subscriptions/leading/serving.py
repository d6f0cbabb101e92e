"""A process that keeps a group going without being a member of it: it stands by to lead, and records when it leads.

A group that is destroyed and declared anew is another one, which is served from then on.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from durable_log.log_api import LogApi
from durable_log.recording.recorder import RecorderStatistics
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread
from shared_subscriptions import config, groups
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.leading.listener import LeadershipListener
from shared_subscriptions.leading.recording import Recording
from shared_subscriptions.leading.thread import LeaderThread

if TYPE_CHECKING:
    from pubsub_api import Session

LOG = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Between looks for a declaration of a group that is gone."""


class GroupService(Closeable):
    """Runs until it is closed.  The session and the log stay the caller's.  Raises GroupNotFound, LimitReached."""

    def __init__(self, session: Session, log: LogApi, group: str) -> None:
        self._session = session
        self._log = log
        self._name = group
        self._conf = config.register(session.conf)
        self._resign_timeout_s = config.REVOKE_TIMEOUT_S
        self._is_gone = threading.Event()
        self._is_serving = True
        self._is_closed = False
        self._begin(groups.get(log, group))
        self._thread = PeriodicThread(
            "heliograph-group-service",
            self._follow,
            Failures(LOG, f"Group {group} is not served"),
            pause_s=0.0,
            retry_s=_LOOK_S,
            at_once=True,
        )
        try:
            self._thread.start()
        except BaseException:
            self._end()
            raise

    def _begin(self, declaration: Declaration) -> None:
        self._recording = Recording(self._session, self._log, claim_time_s=declaration.claim_time_s)
        self._leaders = LeaderThread(self._log, self._conf)
        self._group = self._leaders.add(
            declaration,
            LeadershipListener(
                on_rule=self._recording.on_rule, is_recording=self._recording.is_recording,
                on_destroyed=self._is_gone.set,
            ),  # fmt: skip
        )  # fmt: skip

    def _end(self) -> None:
        self._leaders.close(timeout_s=self._resign_timeout_s)
        self._recording.close()

    def _follow(self) -> None:
        """Wait until the group is gone, and serve the next one of its name.  Raises what keeps it from that."""
        self._is_gone.wait()
        if self._is_closed:
            return
        if self._is_serving:
            LOG.warning("Group %s does not exist any more; it is served again once it is declared anew.", self._name)
            self._is_serving = False
            self._end()
        declaration = groups.get(self._log, self._name)
        self._is_gone.clear()
        try:
            self._begin(declaration)
        except BaseException:
            self._is_gone.set()
            raise
        self._is_serving = True
        LOG.info("Group %s was declared anew and is served.", self._name)

    @property
    def is_leading(self) -> bool:
        return self._group.is_leading

    def statistics(self) -> RecorderStatistics | None:
        """What is recorded; None while another process leads."""
        return next(iter(self._recording.statistics().values()), None)

    def close(self) -> None:
        """Resign in good order."""
        self._is_closed = True
        self._thread.ask_to_stop()
        self._is_gone.set()
        self._thread.stop()
        self._end()
