"""The sweeper: publishes what a writer committed and did not live to publish.

A change stays in the outbox until somebody confirms it.  What is older than ``[db] outbox_age`` by the store's clock is
taken for abandoned: it is published, flushed and confirmed, in batches.  A writer that was only slow publishes it too;
followers recognise the second one by its version.  Several sweepers of one database do no harm but that.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
from collections.abc import Callable, Collection

from oslo_config import cfg

from nb_api.config import GROUP
from nb_api.db_api import DbApi
from nb_api.publishing import ChangePublisher
from pubsub_api.errors import Closed, HeliographError

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class SweepCounters:
    sweeps: int = 0
    swept: int = 0
    """Changes published because their writers did not."""
    failures: int = 0


class OutboxSweeper:
    """Sweeps one database into one publisher.  ``in_hand`` names revisions that their own writer still sees to."""

    def __init__(
        self,
        db: DbApi,
        publisher: ChangePublisher,
        conf: cfg.ConfigOpts,
        *,
        in_hand: Callable[[], Collection[int]] = tuple,
    ) -> None:
        options = conf[GROUP]
        self._db = db
        self._publisher = publisher
        self._age_s: float = options.outbox_age
        self._interval_s: float = options.sweep_interval
        self._batch: int = options.sweep_batch
        self._timeout_s: float = options.publish_timeout
        self._in_hand = in_hand
        self._is_failing = False
        self.counters = SweepCounters()

    def sweep(self) -> int:
        """Publish and confirm everything that is old enough; returns how many changes that were.

        Raises DbError and what publishing raises.  What was not confirmed is found again next time.
        """
        self.counters.sweeps += 1
        swept = 0
        while True:
            abandoned = self._db.unpublished(older_than_s=self._age_s, limit=self._batch)
            in_hand = set(self._in_hand()) if abandoned else set()
            changes = [change for change in abandoned if change.revision not in in_hand]
            if not changes:
                return swept
            # First, so that nothing is sent again and again into a transport that takes nothing.
            self._publisher.flush(timeout_s=self._timeout_s)
            self._publisher.publish(changes)
            self._publisher.flush(timeout_s=self._timeout_s)
            self._db.mark_published([change.revision for change in changes])
            swept += len(changes)
            self.counters.swept += len(changes)
            LOG.info(
                "Outbox: published %d changes that their writers left, revisions %d to %d.",
                len(changes), changes[0].revision, changes[-1].revision,
            )  # fmt: skip
            if len(abandoned) < self._batch:
                return swept

    def run(self, stop: threading.Event) -> None:
        """Sweep again and again until ``stop`` is set, by chance a little sooner or later so that sweepers disperse."""
        while not stop.wait(self._interval_s * random.uniform(0.75, 1.25)):
            try:
                self.sweep()
            except Closed:
                return
            except HeliographError as error:
                self.counters.failures += 1
                if not self._is_failing:
                    LOG.warning("Outbox: cannot be swept: %s. It will be tried again.", error)
                self._is_failing = True
            else:
                self._is_failing = False
