"""Publishing what others wrote into the database without a bus: from controller to controller, through the database.

The feed has every change in commit order.  Those of the watched tables are published here, of all writers.  How far
it came is noted in the database now and then, so that the next watcher goes on from there; what was published
after the last note is published again then, and recognised by its version.

What could not be told is noted, too: a change that cannot be published, and changes that were gone before they were
followed, deletes among them.  Copies that have not read the database since then do so at their next verification.  A
change that cannot be published is tried again, and named, until it can.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Collection, Sequence

from nb_api.coordination import watch_note
from nb_api.coordination.watch_note import WatchNote
from nb_api.db_api import Change, DbApi
from nb_api.errors import RevisionGone
from nb_api.writing.publishing import ChangePublisher, PublishRefusal, send_each
from publisher_service.core.messages import Group
from publisher_service.sequencer import Sequencer
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.events import Event, encode_event
from pubsub_api.errors import HeliographError, LimitReached
from pubsub_api.runtime.periodic import Failures, PeriodicThread
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_WAIT_S = 0.5
"""How long one wait for the feed takes: a caller that wants this to stop waits no longer."""
_RETRY_S = 1.0
"""What cannot be published is tried again this often, a portion at a time."""
_REFUSED_MAX = 10_000
"""Changes that are tried again.  Of those before them copies read in the database, as of these."""


class OwnPublisher(ChangePublisher):
    """Changes that the service itself publishes, in order with those of the workers."""

    def __init__(self, sequencer: Sequencer, clock: HybridClock) -> None:
        self._sequencer = sequencer
        self._clock = clock

    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
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
                PublishRefusal(change.revision, change.table, change.key, reasons[topic])
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
    """Changes that cannot be published, and are tried again.  Copies read them when they verify themselves."""
    gaps: int = 0
    """Times when the feed did not reach back to where it was left: the objects were published instead, and copies read
    the rest."""
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
        self._is_positioned = False
        self._position = 0
        self._untold = 0
        """Not all changes up to this revision were published."""
        self._has_news = False
        """Something was followed since the last note, other than notes."""
        self._noted_at = 0.0
        self.counters = WatchCounters()
        self.refused: dict[int, PublishRefusal] = {}
        """By revision, what cannot be published; what was tried longest ago comes first."""
        self._retry_at = 0.0
        self._log_refused = RateLimitedLog(LOG, level=logging.ERROR)

    def thread(self) -> PeriodicThread:
        """What follows, from where the last one came to, to be started; the one before must have ended."""
        self._is_positioned = False
        return PeriodicThread(
            "heliograph-watcher",
            self._work,
            Failures(LOG, "The watched tables cannot be followed", self.counters),
            pause_s=0.0,
            retry_s=_WAIT_S,
            at_once=True,
        )

    def note_end(self) -> None:
        """Write down how far it came, when the thread has ended."""
        self._note(is_last=True)

    def _work(self) -> None:
        if not self._is_positioned:
            self._read_note()
            self._is_positioned = True
        self._retry()
        self._follow()

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
            self._has_news |= any(change.table != watch_note.TABLE for change in changes)
        self._note()

    def _publish_objects(self, error: RevisionGone) -> None:
        """The changes since then are gone.  The objects are not; what was deleted meanwhile is not told."""
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
            self._position = self._untold = snapshot.revision
            self._has_news = True

    def _publish(self, changes: Sequence[Change]) -> None:
        refused = self._publisher.publish(changes) if changes else []
        self.counters.published += len(changes) - len(refused)
        if refused:
            self._log_refused("%d changes of watched tables cannot be published: %s", len(refused), refused[0])
        for refusal in refused:
            self.refused.pop(refusal.revision, None)
            self.refused[refusal.revision] = refusal
            self._untold = max(self._untold, refusal.revision)
        while len(self.refused) > _REFUSED_MAX:
            del self.refused[next(iter(self.refused))]
        self.counters.refused = len(self.refused)

    def _retry(self) -> None:
        if not self.refused or time.monotonic() < self._retry_at:
            return
        revisions = list(itertools.islice(self.refused, self._portion))
        self._retry_at = time.monotonic() + _RETRY_S
        changes = self._db.changes_of(revisions)  # what is gone from the feed is read by copies, and nothing to retry
        tried = {revision: self.refused.pop(revision) for revision in revisions}
        try:
            self._publish(changes)
        except HeliographError:
            self.refused.update(tried)
            raise

    def _read_note(self) -> None:
        """Begin where the last service that watched came to; when none ever did, with the present."""
        note = watch_note.read(self._db, self._name)
        if note is None:
            revision = self._db.revision()
            note = WatchNote(revision, untold=revision)
            watch_note.write(self._db, note, self._name)
        self._position, self._untold = note

    def _note(self, *, is_last: bool = False) -> None:
        """Write down how far it came, not too often: every note is a change in the database."""
        is_due = is_last or time.monotonic() - self._noted_at >= self._note_interval_s
        if not is_due or not self._has_news:
            return
        try:
            watch_note.write(self._db, WatchNote(self._position, self._untold), self._name)
            self._noted_at = time.monotonic()
            self._has_news = False
        except HeliographError as error:
            self.counters.failures += 1
            LOG.warning("How far the watched tables were followed cannot be noted: %s", error)
