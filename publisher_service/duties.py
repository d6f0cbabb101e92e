"""What the service does for the whole installation, on behalf of the database: one service at a time, by election.

Every service registers its publisher in the directory.  The one that is elected also sweeps the outbox, compacts the
feed, and publishes the changes of the watched tables.  So N services do not publish everything N times; that two do it
for a moment, when the leader was frozen, costs events that are recognised by their version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from types import TracebackType
from typing import Any

from oslo_config import cfg

from nb_api import notify_config
from nb_api.compaction import Compactor
from nb_api.db_api import DbApi
from nb_api.discovery import Registration
from nb_api.election import Election
from nb_api.loading import open_db
from nb_api.outbox import OutboxSweeper
from publisher_service import config
from publisher_service.sequencer import Sequencer
from publisher_service.watching import OwnPublisher, TableWatcher
from pubsub_api import Publisher
from pubsub_api.config import GROUP as PUBSUB
from pubsub_api.core.clock import HybridClock
from pubsub_api.errors import HeliographError

LOG = logging.getLogger(__name__)

ELECTION = "publisher-service"


def are_wanted(conf: cfg.ConfigOpts) -> bool:
    """Whether there is a database whose changes are told on the bus."""
    return bool(conf[PUBSUB].enable_df_pub_sub)


def look_at(db: DbApi, conf: cfg.ConfigOpts) -> dict[str, Any]:
    """Revision and outbox of a database, or the problem it has."""
    limit = conf[config.GROUP].outbox_shown_max
    seen: dict[str, Any] = {"revision": None, "outbox": None, "outbox_shown_max": limit, "problem": None}
    try:
        return seen | {"revision": db.revision(), "outbox": len(db.unpublished(limit=limit))}
    except HeliographError as error:
        return seen | {"problem": str(error)}


class Duties:
    """From `start` to `close`.  Needs the database at `start`; later it may come and go."""

    def __init__(self, conf: cfg.ConfigOpts, publisher: Publisher, sequencer: Sequencer, *, owns_address: bool) -> None:
        notify_config.register(conf)
        self._conf = conf
        self._publisher = publisher
        self._own = OwnPublisher(sequencer, HybridClock(int(conf[PUBSUB].clock_skew_max * 1e9)))
        self._owns_address = owns_address
        self._parts = contextlib.ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Raises DbUnavailable, InvalidConfig."""
        with contextlib.ExitStack() as parts:
            self.db: DbApi = open_db(None, self._conf, with_outbox=False)
            parts.callback(self.db.close)
            self._sweeper = OutboxSweeper(self.db, self._own, self._conf)
            self._compactor = Compactor(self.db, self._conf)
            self._watcher = self._make_watcher()
            self._registration = parts.enter_context(
                Registration(self.db, self._publisher, owns_address=self._owns_address)
            )
            self._election = Election(
                self.db,
                ELECTION,
                holder=f"{self._publisher.name} {self._publisher.guid.hex()[:8]}",
                on_gain=self._take_office,
                on_loss=self._leave_office,
            )
            parts.enter_context(self._election)
            self._parts = parts.pop_all()

    def close(self) -> None:
        """Resign, so that another takes over at once, and leave the directory.  Idempotent."""
        self._parts.close()

    @property
    def is_leader(self) -> bool:
        return self._election.is_leader()

    def report(self) -> dict[str, Any]:
        elected = self._election.statistics()
        return {
            "leader": elected.is_leader,
            "leader_name": elected.leader,
            "election": dataclasses.asdict(elected),
            "registration": dataclasses.asdict(self._registration.statistics()),
            "sweeper": dataclasses.asdict(self._sweeper.counters),
            "compactor": dataclasses.asdict(self._compactor.counters),
            "watcher": dataclasses.asdict(self._watcher.counters) if self._watcher else None,
            "invalid_events": self._own.invalid_events,
            **look_at(self.db, self._conf),
        }

    def _make_watcher(self) -> TableWatcher | None:
        options = self._conf[config.GROUP]
        if not options.watch_tables:
            return None
        return TableWatcher(
            self.db,
            self._own,
            options.watch_tables,
            name=ELECTION,
            portion=options.watch_portion,
            note_interval_s=options.watch_note_interval,
        )

    def _take_office(self, token: int) -> None:
        LOG.info("This service was elected, with token %d: it sweeps the outbox and watches tables.", token)
        self._stop = stop = threading.Event()
        tasks = [("sweeper", self._sweeper.run), ("compactor", self._compactor.run)]
        if self._watcher is not None:
            tasks.append(("watcher", self._watcher.run))
        self._threads = [
            threading.Thread(target=task, args=(stop,), name=f"heliograph-{name}", daemon=True) for name, task in tasks
        ]
        for thread in self._threads:
            thread.start()

    def _leave_office(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def __enter__(self) -> Duties:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
