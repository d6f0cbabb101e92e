"""A process that keeps a group going without being a member of it: it stands by to lead, and records when it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_log.log_api import LogApi
from durable_log.recorder import RecorderStatistics
from pubsub_api.closing import Closeable
from shared_subscriptions import config, groups
from shared_subscriptions.leader_thread import LeaderThread
from shared_subscriptions.leading import Owner
from shared_subscriptions.recording import Recording

if TYPE_CHECKING:
    from pubsub_api import Session


class GroupService(Closeable):
    """Runs until it is closed.  The session and the log stay the caller's.  Raises GroupNotFound."""

    def __init__(self, session: Session, log: LogApi, group: str) -> None:
        conf = config.register(session.conf)
        self._resign_timeout_s: float = conf[config.GROUP].revoke_timeout
        declaration = groups.get(log, group)
        self._recording = Recording(session, log, claim_time_s=declaration.claim_time_s)
        self._leaders = LeaderThread(log, conf)
        self._group = self._leaders.add(declaration, Owner(on_rule=self._recording.on_rule))

    @property
    def is_leading(self) -> bool:
        return self._group.is_leading

    def statistics(self) -> RecorderStatistics | None:
        """What is recorded; None while another process leads."""
        return next(iter(self._recording.statistics().values()), None)

    def close(self) -> None:
        """Resign in good order."""
        self._leaders.close(timeout_s=self._resign_timeout_s)
        self._recording.close()
