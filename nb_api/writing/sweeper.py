"""The sweeper: publishes what a writer committed and did not live to publish.

A change stays in the outbox until it is confirmed.  What is older than ``[db] outbox_age`` by the store's clock is
taken for abandoned: it is published, flushed and confirmed, in batches.  A writer that was only slow publishes it too;
followers recognise the second one by its version.  Several sweepers of one database do no harm but that.

A change that cannot be published, for a reason of its own or because a limit is reached, stays in the outbox and is
tried again by every sweep.  The others are not held up by it, and `OutboxSweeper.refused` names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence

from oslo_config import cfg

from nb_api import notify_config
from nb_api.config import GROUP
from nb_api.db_api import Change, DbApi
from nb_api.writing.publishing import ChangePublisher, PublishRefusal
from pubsub_api.errors import NotPermitted
from pubsub_api.runtime.periodic import Failures, PeriodicThread, with_jitter
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

REFUSED_MAX = 10_000
"""Changes that cannot be published and are named; those beyond are only counted."""


@dataclasses.dataclass
class SweepCounters:
    sweeps: int = 0
    swept: int = 0
    """Changes published because their writers did not."""
    refused: int = 0
    """Changes that the newest sweep could not publish, and that stay in the outbox."""
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
        self._db = db
        self._publisher = publisher
        self._age_s: float = conf[GROUP].outbox_age
        self._interval_s = notify_config.sweep_interval(conf)
        self._batch: int = notify_config.SWEEP_BATCH
        self._timeout_s: float = notify_config.PUBLISH_TIMEOUT_S
        self._in_hand = in_hand
        self.counters = SweepCounters()
        self.refused: dict[int, PublishRefusal] = {}
        """By revision: what the newest sweep could not publish, the oldest of it."""
        self._log_refused = RateLimitedLog(LOG, level=logging.ERROR)

    def sweep(self) -> int:
        """Publish and confirm everything that is old enough; returns how many changes that were.

        Raises DbError and what publishing raises.  What was not confirmed is found again next time.
        """
        self.counters.sweeps += 1
        swept = count = after = 0
        refused: dict[int, PublishRefusal] = {}
        while True:
            in_hand = self._in_hand()
            abandoned = self._db.unpublished(older_than_s=self._age_s, after_revision=after, limit=self._batch)
            if not abandoned:
                break
            after = abandoned[-1].revision
            changes = [one for one in abandoned if one.revision not in in_hand]
            now_refused = self._publish(changes) if changes else []
            swept += len(changes) - len(now_refused)
            count += len(now_refused)
            refused.update((refusal.revision, refusal) for refusal in now_refused[: REFUSED_MAX - len(refused)])
        self.refused = refused
        self.counters.refused = count
        return swept

    def _publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        """Publish and confirm; returns what cannot be published."""
        # First, so that nothing is sent again and again into a transport that takes nothing.
        with contextlib.suppress(NotPermitted):  # of what others have published
            self._publisher.flush(timeout_s=self._timeout_s)
        refused = self._publisher.publish(changes)
        try:
            self._publisher.flush(timeout_s=self._timeout_s)
        except NotPermitted:
            # Asked again it is known which.  What is sent twice is recognised by its version.
            refused = self._publisher.publish(changes)
            self._publisher.flush(timeout_s=self._timeout_s)
        if refused:
            self._log_refused("Outbox: %d changes cannot be published and stay: %s", len(refused), refused[0])
        without = {refusal.revision for refusal in refused}
        published = [change.revision for change in changes if change.revision not in without]
        if published:
            self._db.mark_published(published)
            self.counters.swept += len(published)
            LOG.info(
                "Outbox: published %d changes that their writers left, revisions %d to %d.",
                len(published), published[0], published[-1],
            )  # fmt: skip
        return refused

    def thread(self) -> PeriodicThread:
        """What sweeps every ``SWEEP_INTERVAL_S``, to be started."""
        failures = Failures(LOG, "Outbox: cannot be swept", self.counters)
        return PeriodicThread("heliograph-sweeper", self.sweep, failures, pause_s=with_jitter(self._interval_s))
