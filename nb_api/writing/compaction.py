"""The compactor: keeps a database's feed and tombstones from growing for ever.

A cache that has not seen what is compacted away reads a snapshot instead; so the feed should reach back as far as a
controller is usually away.  Several compactors of one database do no harm.
"""

from __future__ import annotations

import dataclasses
import logging

from oslo_config import cfg

from nb_api.config import GROUP
from nb_api.db_api import DbApi
from nb_api.notify_config import COMPACT_INTERVAL_S, TOMBSTONES_KEPT_S
from pubsub_api.runtime.periodic import Failures, PeriodicThread, with_jitter

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class CompactionCounters:
    compactions: int = 0
    dropped: int = 0
    """Changes that the feed has lost by them."""
    failures: int = 0


class FeedCompactor:
    """Compacts one database, as ``[db] changes_kept`` says."""

    def __init__(self, db: DbApi, conf: cfg.ConfigOpts) -> None:
        self._db = db
        self._keep_changes: int = conf[GROUP].changes_kept
        self._keep_tombstones_s = TOMBSTONES_KEPT_S
        self._interval_s = COMPACT_INTERVAL_S
        self.counters = CompactionCounters()

    def compact(self) -> int:
        """Forget what is beyond the bounds; returns how many changes the feed has lost.  Raises DbError."""
        dropped = self._db.compact(keep_changes=self._keep_changes, keep_tombstones_s=self._keep_tombstones_s)
        self.counters.compactions += 1
        self.counters.dropped += dropped
        if dropped:
            LOG.info("Database: %d old changes left the feed, which keeps %d.", dropped, self._keep_changes)
        return dropped

    def threads(self) -> list[PeriodicThread]:
        """What compacts every ``COMPACT_INTERVAL_S``, to be started."""
        failures = Failures(LOG, "Database: cannot be compacted", self.counters)
        return [PeriodicThread("heliograph-compactor", self.compact, failures, pause_s=with_jitter(self._interval_s))]
