"""The service's upkeep of the database, from its start on: waits for a database that is not there, then begins.

Workers and subscribers need no database.  So the service starts without one, says in its log and its report that it is
away, and tries again with growing pauses.  What it does when the database is there, `publisher_service.upkeep.elected`
says.
"""

from __future__ import annotations

import contextlib
import logging
import random
from typing import Any

from oslo_config import cfg

from nb_api import config as db_config
from nb_api import notify_config
from nb_api.db_api import DbApi
from nb_api.loading import build_db, open_db
from publisher_service import config
from publisher_service.sequencer import Sequencer
from publisher_service.upkeep.elected import ElectedUpkeep
from publisher_service.upkeep.watching import OwnPublisher
from pubsub_api import Publisher
from pubsub_api.config import GROUP as PUBSUB
from pubsub_api.core.clock import HybridClock
from pubsub_api.errors import HeliographError
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread
from pubsub_api.settings import CLOCK_SKEW_MAX_S

LOG = logging.getLogger(__name__)

_TROUBLE = "The database cannot be used; workers are served, but nothing is swept, and the directory lacks this service"


def are_wanted(conf: cfg.ConfigOpts) -> bool:
    """Whether there is a database whose changes are told on the bus."""
    return bool(conf[PUBSUB].enable_df_pub_sub)


def look_at(db: DbApi) -> dict[str, Any]:
    """Revision and outbox of a database, or the problem it has."""
    try:
        revision, outbox = db.revision(), len(db.unpublished(limit=config.OUTBOX_SHOWN_MAX))
    except HeliographError as error:
        return _seen(problem=str(error))
    return _seen(revision=revision, outbox=outbox)


def _seen(*, revision: int | None = None, outbox: int | None = None, problem: str | None = None) -> dict[str, Any]:
    limit = config.OUTBOX_SHOWN_MAX
    return {"revision": revision, "outbox": outbox, "outbox_shown_max": limit, "problem": problem}


class DatabaseUpkeep(Closeable):
    """From `start` to `close`, on a thread of its own."""

    def __init__(
        self, conf: cfg.ConfigOpts, publisher: Publisher, sequencer: Sequencer, *, owns_address: bool, place: str
    ) -> None:
        notify_config.register(conf)
        self._conf = conf
        self._publisher = publisher
        self._own = OwnPublisher(sequencer, HybridClock(int(CLOCK_SKEW_MAX_S * 1e9)))
        self._owns_address = owns_address
        self._place = place
        options = conf[db_config.GROUP]
        backoff = Backoff(notify_config.retry_interval(conf), options.retry_interval_max, jitter=random.random)
        self._db: DbApi | None = None
        self._upkeep: ElectedUpkeep | None = None
        self._failed_attempts = 0
        self._is_closed = False
        self._problem: str | None = None
        self._parts = contextlib.ExitStack()
        """What the thread has begun; `close` ends it when it has joined the thread."""
        self._thread = PeriodicThread(
            "heliograph-upkeep",
            self._begin,
            Failures(LOG, _TROUBLE),
            pause_s=0.0,
            retry_s=backoff.next_s,
            at_once=True,
            on_failure=self._failed,
        )

    def start(self) -> None:
        """Does not wait for the database.  Raises what is wrong with its configuration: InvalidConfig, DriverNotFound,
        DriverDependencyMissing."""
        build_db(None, self._conf, with_outbox=False).close()
        self._thread.start()

    def close(self) -> None:
        """Resign, so that another takes over at once, and leave the directory.  Blocks while the database is being
        connected to, for as long as that may take.  Idempotent."""
        self._is_closed = True
        self._thread.stop()
        self._parts.close()

    @property
    def is_leader(self) -> bool:
        return self._upkeep is not None and self._upkeep.is_leader

    def report(self) -> dict[str, Any]:
        """How the database is and, once it has been there, what this service does for it."""
        seen = {"failed_attempts": self._failed_attempts}
        if self._db is None or self._upkeep is None:
            return seen | _seen(problem=self._problem or "it has not answered yet")
        return seen | self._upkeep.report() | look_at(self._db)

    # -- the thread

    def _begin(self) -> None:
        with contextlib.ExitStack() as parts:
            db = open_db(None, self._conf, with_outbox=False)
            parts.callback(db.close)
            upkeep = parts.enter_context(
                ElectedUpkeep(db, self._publisher, self._own, owns_address=self._owns_address, place=self._place)
            )
            self._parts = parts.pop_all()
        self._thread.ask_to_stop()
        self._db, self._upkeep, self._problem = db, upkeep, None
        if self._failed_attempts:
            LOG.info("The database is there after %d attempts: its upkeep begins.", self._failed_attempts)

    def _failed(self, error: Exception) -> None:
        self._failed_attempts += 1
        self._problem = str(error)

    def __enter__(self) -> DatabaseUpkeep:
        self.start()
        return self
