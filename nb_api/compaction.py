"""The compactor: keeps a database's feed and tombstones from growing for ever.

Who has not seen what is compacted away reads a snapshot instead; so the feed should reach back as far as a controller
is usually away.  Several compactors of one database do no harm.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading

from oslo_config import cfg

from nb_api.config import GROUP
from nb_api.db_api import DbApi
from nb_api.notify_config import TOMBSTONES_KEPT_S
from pubsub_api.errors import Closed, HeliographError

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class CompactionCounters:
    compactions: int = 0
    dropped: int = 0
    """Changes that the feed has lost by them."""
    failures: int = 0


class Compactor:
    """Compacts one database, as ``[db] changes_kept`` and ``compact_interval`` say."""

    def __init__(self, db: DbApi, conf: cfg.ConfigOpts) -> None:
        options = conf[GROUP]
        self._db = db
        self._keep_changes: int = options.changes_kept
        self._keep_tombstones_s = TOMBSTONES_KEPT_S
        self._interval_s: float = options.compact_interval
        self.counters = CompactionCounters()

    def compact(self) -> int:
        """Forget what is beyond the bounds; returns how many changes the feed has lost.  Raises DbError."""
        dropped = self._db.compact(keep_changes=self._keep_changes, keep_tombstones_s=self._keep_tombstones_s)
        self.counters.compactions += 1
        self.counters.dropped += dropped
        if dropped:
            LOG.info("Database: %d old changes left the feed, which keeps %d.", dropped, self._keep_changes)
        return dropped

    def run(self, stop: threading.Event) -> None:
        """Compact again and again until ``stop`` is set, by chance a little sooner or later so that compactors
        disperse.  Returns at once when the interval is 0."""
        while self._interval_s and not stop.wait(self._interval_s * random.uniform(0.75, 1.25)):
            try:
                self.compact()
            except Closed:
                return
            except Exception as error:  # a thread that ends in silence would leave its work undone
                self.counters.failures += 1
                unforeseen = None if isinstance(error, HeliographError) else error
                LOG.warning("Database: cannot be compacted: %s. It will be tried again.", error, exc_info=unforeseen)
