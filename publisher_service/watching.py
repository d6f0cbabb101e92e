"""Publishing what others wrote into the database without a bus: from controller to controller, through the database.

The feed has every change in commit order.  Those of the watched tables are published here, whoever made them.  How far
it came is noted in the database now and then, so that the next one who watches goes on from there; what was published
after the last note is published again then, and recognised by its version.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Collection, Sequence

from nb_api.bookkeeping import OWN_PREFIX
from nb_api.db_api import Change, DbApi
from nb_api.errors import ObjectNotFound, RevisionGone
from nb_api.leases import TOPIC
from nb_api.publishing import ChangePublisher, Refusal, send_each
from publisher_service.hop.messages import Group
from publisher_service.sequencer import Sequencer
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.events import Event, encode_event
from pubsub_api.errors import Closed, HeliographError, LimitReached
from pubsub_api.seldom import SeldomLog

LOG = logging.getLogger(__name__)

POSITIONS = f"{OWN_PREFIX}watchers"
_WAIT_S = 0.5
"""How long one wait for the feed takes: whoever wants this to stop waits no longer."""


class OwnPublisher(ChangePublisher):
    """Changes that the service itself publishes, in order with those of the workers."""

    def __init__(self, sequencer: Sequencer, clock: HybridClock) -> None:
        self._sequencer = sequencer
        self._clock = clock

    def publish(self, changes: Sequence[Change]) -> list[Refusal]:
        groups: dict[str, list[bytes]] = {}

        def add(event: Event) -> None:
            encoded = encode_event(event, self._clock.tick(time.time_ns()))
            problem = self._sequencer.problem(event.topic, len(encoded))
            if problem:
                raise LimitReached(problem)
            groups.setdefault(event.topic, []).append(encoded)

        refused = send_each(add, changes)
        batch: list[Group] = list(groups.items())
        if batch and self._sequencer.publish(batch)[0]:
            # One by one it shows which.  What is sent again is recognised by its version.
            reasons = {
                topic: why for topic, encoded in batch if (why := self._sequencer.publish([(topic, encoded)])[1])
            }
            refused += [
                Refusal(change.revision, change.table, change.key, reasons[topic])
                for change in changes
                for topic in [change.topic if change.topic in reasons else change.left_topic]
                if topic in reasons
            ]
        return refused

    def flush(self, *, timeout_s: float) -> None:  # noqa: ARG002  it takes as long as the transport takes
        self._sequencer.flush()

    def close(self) -> None:
        """Nothing of it is its own."""


@dataclasses.dataclass
class WatchCounters:
    published: int = 0
    refused: int = 0
    """Changes that could not be published.  Controllers find them when they verify their copies."""
    gaps: int = 0
    """Times when the feed did not reach back to where it was left: the objects were published instead."""
    failures: int = 0


class TableWatcher:
    """Follows the feed and publishes the changes of some tables.  One thread at a time runs it."""

    def __init__(
        self,
        db: DbApi,
        publisher: ChangePublisher,
        tables: Collection[str],
        *,
        name: str,
        portion: int,
        note_interval_s: float,
    ) -> None:
        self._db = db
        self._publisher = publisher
        self._tables = frozenset(tables)
        self._name = name
        self._portion = portion
        self._note_interval_s = note_interval_s
        self._position = 0
        self._has_news = False
        """Something was followed since the last note, other than notes."""
        self._noted_at = 0.0
        self.counters = WatchCounters()
        self._log_refused = SeldomLog(LOG, level=logging.ERROR)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set.  What the database or the transport cannot do is tried again."""
        is_positioned = False
        while not stop.is_set():
            try:
                if not is_positioned:
                    self._position = self._read_position()
                    is_positioned = True
                self._follow()
            except Closed:
                return
            except HeliographError as error:
                self.counters.failures += 1
                LOG.warning("The watched tables cannot be followed: %s. It will be tried again.", error)
                stop.wait(_WAIT_S)
        self._note(is_last=True)

    def _follow(self) -> None:
        """Wait for a change, for a while, and publish what came."""
        try:
            if not self._db.wait(self._position, timeout_s=_WAIT_S):
                self._note()
                return
            changes = self._db.changes(self._position, limit=self._portion)
        except RevisionGone as error:
            self._publish_objects(error)
            return
        watched = [change for change in changes if change.table in self._tables]
        self._publish(watched)
        if changes:
            self._position = changes[-1].revision
            # A note itself is a change: to note that it was followed would mean to note for ever.
            self._has_news |= any(change.table != POSITIONS for change in changes)
        self._note()

    def _publish_objects(self, error: RevisionGone) -> None:
        """The changes since then are gone.  The objects are not; what was deleted meanwhile, controllers find when they
        verify their copies."""
        self.counters.gaps += 1
        LOG.error("%s. The objects of %s are published instead.", error, ", ".join(sorted(self._tables)))
        with self._db.snapshot(sorted(self._tables)) as snapshot:
            objects = iter(snapshot)
            while portion := list(itertools.islice(objects, self._portion)):
                self._publish(
                    [
                        Change(found.version, "set", found.table, found.key, found.topic, found.value)
                        for found in portion
                    ]
                )
            self._position = snapshot.revision
            self._has_news = True

    def _publish(self, changes: Sequence[Change]) -> None:
        refused = self._publisher.publish(changes) if changes else []
        self.counters.published += len(changes) - len(refused)
        self.counters.refused += len(refused)
        if refused:
            self._log_refused("%d changes of watched tables cannot be published: %s", len(refused), refused[0])

    def _read_position(self) -> int:
        """Where the last one who watched came to; when nobody ever did, the present."""
        try:
            noted = self._db.get(POSITIONS, self._name).value
        except ObjectNotFound:
            position = self._db.revision()
            self._db.create(POSITIONS, self._name, {"revision": position}, topic=TOPIC)
            return position
        return int(noted["revision"]) if isinstance(noted, dict) else self._db.revision()

    def _note(self, *, is_last: bool = False) -> None:
        """Write down how far it came, not too often: every note is a change in the database."""
        is_due = is_last or time.monotonic() - self._noted_at >= self._note_interval_s
        if not is_due or not self._has_news:
            return
        try:
            self._db.set(POSITIONS, self._name, {"revision": self._position})
            self._noted_at = time.monotonic()
            self._has_news = False
        except HeliographError as error:
            self.counters.failures += 1
            LOG.warning("How far the watched tables were followed cannot be noted: %s", error)
