"""What the service does for the whole installation with a database that is there: one service at a time, by election.

Every service registers its publisher in the directory.  The one that is elected also sweeps the outbox, compacts the
feed, and publishes the changes of the watched tables.  So N services do not publish everything N times; that two do it
for a moment, when the leader was frozen, costs events that are recognised by their version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from nb_api.coordination import watch_note
from nb_api.coordination.discovery import Registration
from nb_api.coordination.election import Election
from nb_api.db_api import DbApi
from nb_api.writing.compaction import FeedCompactor
from nb_api.writing.publishing import PublishRefusal
from nb_api.writing.sweeper import OutboxSweeper
from publisher_service import config
from publisher_service.upkeep.watching import OwnPublisher, TableWatcher
from pubsub_api import Publisher
from pubsub_api.runtime.periodic import PeriodicThread

LOG = logging.getLogger(__name__)

ELECTION = "publisher-service"
_RETRY_S = 1.0
"""Between attempts to start a thread that the system had no room for."""
_REFUSED_SHOWN = 10
"""Changes that cannot be published, by name, in the report; the sweeper counts all of them."""


def _shown(refused: Mapping[int, PublishRefusal]) -> list[str]:
    # A copy at once: other threads change it.
    return [str(refusal) for refusal in itertools.islice(list(refused.values()), _REFUSED_SHOWN)]


class ElectedUpkeep:
    """From entering the ``with`` to leaving it, the database may come and go.  It stays the caller's."""

    def __init__(self, db: DbApi, publisher: Publisher, own: OwnPublisher, *, owns_address: bool, place: str) -> None:
        self._db = db
        self._conf = db.conf
        self._own = own
        self._parts = contextlib.ExitStack()
        self._is_leaving = threading.Event()
        self._threads: list[PeriodicThread] = []
        """What the leader does."""
        self._undone: list[str] = []
        """Names of those that could not be started yet."""
        self._sweeper = OutboxSweeper(db, own, db.conf)
        self._compactor = FeedCompactor(db, db.conf)
        self._watcher = self._make_watcher()
        self._registration = Registration(db, publisher, owns_address=owns_address)
        self._election = Election(
            db,
            ELECTION,
            holder=f"{publisher.name} {publisher.guid.hex()[:8]}",
            place=place,
            on_gain=self._begin,
            on_loss=self._end,
        )

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
            "undone": list(self._undone),
            "refused": _shown(self._sweeper.refused),
            "refused_of_watched": _shown(self._watcher.refused) if self._watcher else [],
        }

    def _make_watcher(self) -> TableWatcher | None:
        options = self._conf[config.GROUP]
        if not options.watch_tables:
            return None
        return TableWatcher(
            self._db,
            self._own,
            options.watch_tables,
            name=watch_note.NAME,
            portion=config.WATCH_PORTION,
            note_interval_s=config.WATCH_NOTE_INTERVAL_S,
        )

    def _begin(self, token: int) -> None:
        LOG.info("This service was elected, with token %d: it sweeps the outbox and watches tables.", token)
        watching = [] if self._watcher is None else [self._watcher.thread()]
        self._threads = [self._sweeper.thread(), *self._compactor.threads(), *watching]
        # The end of the term is told after this returns, so this may wait until there is room for all threads.
        while True:
            self._undone = [thread.name for thread in self._threads if not thread.try_start()]
            if not self._undone or not self._election.is_leader():
                return
            self._is_leaving.wait(_RETRY_S)

    def _end(self) -> None:
        for thread in self._threads:
            thread.ask_to_stop()
        for thread in self._threads:
            thread.stop()
        if self._watcher is not None:
            self._watcher.note_end()
        self._threads, self._undone = [], []

    def __enter__(self) -> ElectedUpkeep:
        """Take part.  Does not wait for the database."""
        with contextlib.ExitStack() as parts:
            parts.enter_context(self._registration)
            parts.enter_context(self._election)
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resign, so that another takes over at once, and leave the directory."""
        self._is_leaving.set()
        self._parts.close()
