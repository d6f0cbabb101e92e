"""From the commit to the bus, off the writers' path: one thread publishes what the process commits and confirms it.

A writer only puts what it committed into a bounded queue.  The thread publishes all that waits, together.  Now and then
it waits until everything has left this process's responsibility, and takes it out of the outbox in one transaction.
Whatever goes wrong, the change is still in the outbox, and the sweeper publishes it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from oslo_config import cfg

from nb_api import notify_config
from nb_api.config import GROUP
from nb_api.db_api import Change, DbApi
from nb_api.errors import DbError
from nb_api.writing.publishing import ChangePublisher, PublishRefusal
from pubsub_api.errors import HeliographError, LimitReached, NotPermitted, WaitTimeout
from pubsub_api.runtime import forking
from pubsub_api.runtime.rare_logging import SeldomLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_STALLED_S = 0.5
"""A thread that took nothing from a full queue for so long waits for a publisher service or database that is away."""


@dataclasses.dataclass
class AfterCommitCounters:
    committed: int = 0
    """Changes that this process committed."""
    published: int = 0
    """Of these, handed to the publisher."""
    confirmed: int = 0
    """Of these, taken out of the outbox."""
    left: int = 0
    """Changes left to the sweeper, because the bus or the queue did not take them."""
    refused: int = 0
    """Of these, such as cannot be published: the sweeper tries them again, and names them."""
    failures: int = 0
    """How often publishing or confirming failed."""
    waits: int = 0
    """How often a writer waited because the queue was full."""


class AfterCommitPublisher:
    """Every method may be called from any thread.  A forked child begins with an empty queue; the parent's is the
    parent's."""

    def __init__(self, db: DbApi, publisher: ChangePublisher, conf: cfg.ConfigOpts) -> None:
        options = conf[GROUP]
        self._db = db
        self._publisher = publisher
        self._queue_max: int = options.publish_queue_max
        self._batch_max: int = notify_config.SWEEP_BATCH
        self._timeout_s: float = options.publish_timeout
        self._confirm_interval_s: float = options.confirm_interval
        self._publish_interval_s: float = notify_config.PUBLISH_INTERVAL_S
        self.counters = AfterCommitCounters()
        self._log_refused = SeldomLog(LOG, level=logging.ERROR)
        self._is_closed = False
        self._start_afresh()
        forking.register(self)

    def _start_afresh(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Sequence[Change]] = deque()
        """The changes of each transaction."""
        self._queued = 0
        self._in_work: list[Change] = []
        self._unconfirmed: deque[int] = deque()
        self._last_confirmed = 0.0
        self._last_published = 0.0
        self._progress_at = time.monotonic()
        """When the thread last took something from the queue, or had nothing to do."""
        self._is_hurried = False
        self._is_asleep = False
        self._failure: HeliographError | None = None
        self._thread: threading.Thread | None = None

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._changed, self._thread))
        self.counters = AfterCommitCounters()
        self._start_afresh()

    # -- what writers call

    def put(self, changes: Sequence[Change]) -> None:
        """Have what a transaction committed published.  Never raises.

        Waits for room in the queue only while what is in it is being published, and then for a moment: a commit does
        not wait for a publisher service that is away.  What finds no room is left to the sweeper.
        """
        with self._changed:
            self.counters.committed += len(changes)
            is_full = self._queued >= self._queue_max
            if self._is_closed or (is_full and not self._wait_for_room()) or not self._has_thread():
                self._leave(len(changes))
                return
            self._queue.append(changes)
            self._queued += len(changes)
            if self._is_asleep:
                self._changed.notify_all()

    def _has_thread(self) -> bool:
        """Begin it with the first change.  False when there is no room for a thread: the next change tries again."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="heliograph-after-commit", daemon=True)
            try:
                start_thread(thread)
            except LimitReached as error:
                self._failed("published", error)
                return False
            self._thread = thread
        return True

    def _wait_for_room(self) -> bool:
        if self._failure is not None or time.monotonic() - self._progress_at > _STALLED_S:
            return False
        self.counters.waits += 1
        return self._changed.wait_for(lambda: self._queued < self._queue_max, _STALLED_S)

    def flush(self, *, timeout_s: float) -> None:
        """Return when everything committed before is published and out of the outbox, or left to the sweeper.

        Raises WaitTimeout, with the last failure when there was one.
        """
        with self._changed:
            goal = self.counters.committed
            self._is_hurried = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._settled() >= goal, timeout_s):
                why = f": {self._failure}" if self._failure else ""
                raise WaitTimeout(
                    f"{goal - self._settled()} changes are stored and not confirmed as published after {timeout_s} s"
                    f"{why}. They stay in the outbox"
                ) from self._failure

    def _settled(self) -> int:
        return self.counters.confirmed + self.counters.left

    def in_hand(self) -> set[int]:
        """Revisions that are on their way: they need not be swept."""
        with self._changed:
            waiting = [change.revision for changes in (*self._queue, self._in_work) for change in changes]
            return {*waiting, *self._unconfirmed}

    def close(self) -> None:
        """Publish and confirm what waits, for at most ``[db] publish_timeout``, and end the thread.  Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * self._timeout_s)
            rest = len(self.in_hand())
            if rest:
                LOG.warning(
                    "After commit: %d changes could not be published before the end; the outbox has them.", rest
                )

    # -- the thread

    def _run(self) -> None:
        deadline: float | None = None
        while True:
            batch = self._take()
            if batch:
                self._publish(batch)
            if self._is_confirmation_due():
                self._confirm()
            if self._is_closed and not self._queue:
                deadline = deadline or time.monotonic() + self._timeout_s
                if not self._unconfirmed or time.monotonic() > deadline:
                    return

    def _take(self) -> list[Change]:
        """All that waits, up to a batch.  Blocks while there is nothing to do."""
        with self._changed:
            self._pause()
            if not self._queue and not self._is_confirmation_due() and (self._unconfirmed or not self._is_closed):
                self._is_asleep = True
                rest_s = self._last_confirmed + self._confirm_interval_s - time.monotonic()
                self._changed.wait(max(rest_s, 0.0) if self._unconfirmed else None)
                self._is_asleep = False
            self._progress_at = time.monotonic()
            batch: list[Change] = []
            while self._queue and len(batch) < self._batch_max:
                batch += self._queue.popleft()
            self._queued -= len(batch)
            self._in_work = batch
            if batch:
                self._changed.notify_all()
            return batch

    def _pause(self) -> None:
        """After a batch, let some more come: a thread that runs for every commit costs the writers more than it sends.
        Only `flush` and `close` wake it."""
        rest_s = self._last_published + self._publish_interval_s - time.monotonic()
        if rest_s > 0 and self._queued < self._queue_max and not self._is_hurried and not self._is_closed:
            self._changed.wait(rest_s)

    def _publish(self, batch: Sequence[Change]) -> None:
        changes: list[Change] = []
        refused: list[PublishRefusal] = []
        try:
            changes = sorted(batch, key=lambda change: change.revision)
            refused = self._publisher.publish(changes)
        except HeliographError as error:
            self._failed("published", error)
            changes = []
        except Exception:
            self.counters.failures += 1
            LOG.exception("After commit: publishing failed in an unforeseen way. The outbox has the changes.")
            changes = []
        self._last_published = time.monotonic()
        if refused:
            self._log_refused(
                "After commit: %d changes cannot be published and stay in the outbox: %s", len(refused), refused[0]
            )
            without = {refusal.revision for refusal in refused}
            changes = [change for change in changes if change.revision not in without]
        with self._changed:
            self.counters.refused += len(refused)
            self.counters.published += len(changes)
            self._unconfirmed.extend(change.revision for change in changes)
            self._leave(len(batch) - len(changes))
            self._in_work = []
            for _ in range(len(self._unconfirmed) - self._queue_max):
                self._unconfirmed.popleft()
                self._leave(1)

    def _is_confirmation_due(self) -> bool:
        if not self._unconfirmed:
            self._is_hurried = self._is_hurried and bool(self._queue)
            return False
        if time.monotonic() >= self._last_confirmed + self._confirm_interval_s:
            return True
        # A caller waits; but what has just failed is not tried again at once.
        return (self._is_hurried or self._is_closed) and not self._queue and self._failure is None

    def _confirm(self) -> None:
        """Wait until the changes are out of our hands, then take them out of the outbox."""
        revisions = list(self._unconfirmed)
        try:
            self._publisher.flush(timeout_s=self._timeout_s)
            self._db.mark_published(revisions)
        except (LimitReached, NotPermitted) as error:
            # Which of them, is not known here; the sweeper, which publishes them again, finds out.
            self._log_refused("After commit: %s. %d changes are left to the sweeper.", error, len(revisions))
            with self._changed:
                for _ in revisions:
                    self._unconfirmed.popleft()
                self._leave(len(revisions))
        except HeliographError as error:
            self._failed("confirmed", error)
        except Exception as error:
            LOG.exception("After commit: confirming failed in an unforeseen way. It will be tried again.")
            self._failed("confirmed", DbError(f"{type(error).__name__}: {error}"))
        else:
            with self._changed:
                for _ in revisions:
                    self._unconfirmed.popleft()
                self.counters.confirmed += len(revisions)
                if self._failure is not None:
                    LOG.info("After commit: changes are published again.")
                self._failure = None
                self._changed.notify_all()
        self._last_confirmed = time.monotonic()

    def _leave(self, count: int) -> None:
        if count:
            self.counters.left += count
            self._changed.notify_all()

    def _failed(self, what: str, error: HeliographError) -> None:
        self.counters.failures += 1
        if self._failure is None:
            LOG.warning("After commit: changes could not be %s: %s. The outbox has them.", what, error)
        self._failure = error
