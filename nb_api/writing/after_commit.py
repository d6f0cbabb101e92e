"""From the commit to the bus: published by the thread that committed, confirmed by a thread that no writer waits for.

A thread that has committed publishes all that waits, at once, if no other thread is doing that and if it cannot be held
up by it (`nb_api.writing.direct_way`).  What is committed meanwhile waits in a bounded queue, and leaves together as
soon as the way is free: in the next writer's thread, or in the thread of this object, which is woken.  So there is no
timer between a lone commit and the wire; in a flood there is a short pause (`nb_api.writing.pacing`).

Now and then the thread waits until everything has left this process's responsibility, and less often it takes what has
left out of the outbox, in one transaction.  Whatever goes wrong, the change is still in the outbox, and the sweeper
publishes it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
import threading
import time
from collections import deque
from collections.abc import Sequence

from oslo_config import cfg

from nb_api import notify_config
from nb_api.db_api import Change, DbApi
from nb_api.errors import DbError
from nb_api.writing.direct_way import DirectWay, Load, load_of
from nb_api.writing.pacing import Pace
from nb_api.writing.publishing import ChangePublisher, PublishRefusal
from pubsub_api.errors import HeliographError, LimitReached, NotPermitted, WaitTimeout
from pubsub_api.runtime import forking
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_STALLED_S = 0.5
"""A thread that took nothing from a full queue for so long waits for a publisher service or database that is away."""


_END_S = 1.0
"""Beyond the time that it has, for the thread to notice that it is over."""
_FLUSH_PAUSE_S = 0.02
"""In a flood it is looked so often whether what was published has left."""
_PROOF_PAUSE_S = 0.1
"""The same after a failure, or before the way to the bus is known."""
_UNCONFIRMED_MAX = 5_000
"""With so many it is not waited for the interval."""

_revision = operator.attrgetter("revision")


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
        self._db = db
        self._publisher = publisher
        self._timeout_s: float = notify_config.PUBLISH_TIMEOUT_S
        self._confirm_interval_s = notify_config.confirm_interval(conf)
        self.counters = AfterCommitCounters()
        self._log_refused = RateLimitedLog(LOG, level=logging.ERROR)
        self._is_closed = False
        self._ends_at = math.inf
        """When the thread ends in any case, once this is closed."""
        self._start_afresh()
        forking.register(self)

    def _start_afresh(self) -> None:
        self._lock = threading.RLock()
        """Of the condition, and entered itself: an interrupt within `Condition.__enter__` would leave it held."""
        self._changed = threading.Condition(self._lock)
        self._queue: deque[Sequence[Change]] = deque()
        """The changes of each transaction."""
        self._queued = Load(0, 0)
        self._in_work: Sequence[Change] = ()
        self._sender: int | None = None
        """The thread that publishes: it alone, so that what it took before is on the wire before what comes now."""
        self._unconfirmed: deque[int] = deque()
        self._last_flushed = self._last_confirmed = 0.0
        self._way = DirectWay()
        self._pace = Pace()
        self._looks_at = -math.inf
        """When the thread will look what there is to do, unless it is woken; in the past while it is awake."""
        self._progress_at = time.monotonic()
        """When something was last taken from the queue, or put into an empty one."""
        self._is_hurried = False
        self._failure: HeliographError | None = None
        self._thread: threading.Thread | None = None

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._changed, self._thread))
        self.counters = AfterCommitCounters()
        self._start_afresh()

    # -- what writers call

    def put(self, changes: Sequence[Change]) -> None:
        """Publish what a transaction committed, or have it published.  Never raises.

        Waits for room in the queue only while what is in it is being published, and then for a moment: a commit does
        not wait for a publisher service or a bus that is away.  What finds no room is left to the sweeper.
        """
        load = load_of(changes)
        try:
            with self._lock:
                if self._is_alone() and self._may_send(load, time.monotonic()):
                    self.counters.committed += load.changes
                    if load.changes > 1:
                        changes = sorted(changes, key=_revision)
                    self._begin_sending(changes)
                elif not self._is_taken(changes, load) or self._sender is not None:
                    return  # left to the sweeper, or to the thread that sends
                elif self._may_send(self._queued, time.monotonic()):
                    changes, load = self._take()
                else:
                    self._wake_by(self._pace.due)
                    return
            self._publish(changes, load)
        except BaseException:  # an interrupt
            self._stop_sending()
            raise

    def _is_alone(self) -> bool:
        """Nothing is before what is put now, so that it need not be queued."""
        return not self._queue and self._sender is None and self._thread is not None and not self._is_closed

    def _may_send(self, load: Load, now: float) -> bool:
        """Whether a writer may publish so much itself now."""
        return self._way.is_free(load, now) and self._pace.is_due(load.changes, now)

    def _wake_by(self, when: float) -> None:
        """Have the thread look then, or sooner."""
        if self._looks_at > when:
            self._changed.notify_all()

    def _is_taken(self, changes: Sequence[Change], load: Load) -> bool:
        """Queue it.  False when that cannot be."""
        is_full = self._queued.changes >= notify_config.PUBLISH_QUEUE_MAX
        has_room = not self._is_closed and (not is_full or self._wait_for_room()) and self._has_thread()
        self.counters.committed += len(changes)  # now: what waits for room is not lost by another one's interrupt
        if not has_room:
            self._leave(len(changes))
            return False
        if not self._queue:
            self._progress_at = time.monotonic()
        self._queue.append(changes)
        self._queued = self._queued.plus(load)
        return True

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
        return self._changed.wait_for(lambda: self._queued.changes < notify_config.PUBLISH_QUEUE_MAX, _STALLED_S)

    def flush(self, *, timeout_s: float) -> None:
        """Return when everything committed before is published and out of the outbox, or left to the sweeper.

        Raises WaitTimeout, with the last failure when there was one.
        """
        with self._lock:
            goal = self.counters.committed
            self._is_hurried = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._settled() >= goal, timeout_s):
                why = f": {self._failure}" if self._failure else ""
                raise WaitTimeout(
                    f"stored, and not confirmed as published after {timeout_s} s{why}. Left to the outbox: "
                    f"{goal - self._settled()}"
                ) from self._failure

    def _settled(self) -> int:
        return self.counters.confirmed + self.counters.left

    def in_hand(self) -> set[int]:
        """Revisions that are on their way: they need not be swept."""
        with self._lock:
            waiting = [change.revision for changes in (*self._queue, self._in_work) for change in changes]
            return {*waiting, *self._unconfirmed}

    def close(self) -> None:
        """Publish and confirm what waits, for at most ``PUBLISH_TIMEOUT_S``, and end the thread.  Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._ends_at = time.monotonic() + self._timeout_s
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._timeout_s + _END_S)
            rest = len(self.in_hand())
            if rest:
                LOG.warning(
                    "After commit: %d changes could not be published before the end; the outbox has them.", rest
                )

    # -- publishing, in a writer's thread or in ours

    def _begin_sending(self, batch: Sequence[Change]) -> None:
        """From now on the caller sends, and no other thread."""
        self._sender = threading.get_ident()
        self._progress_at = time.monotonic()
        self._in_work = batch

    def _take(self) -> tuple[list[Change], Load]:
        """All that waits, up to a batch, in the order of revisions, to be sent by the caller."""
        batch: list[Change] = []
        while self._queue and len(batch) < notify_config.SWEEP_BATCH:
            batch += self._queue.popleft()
        self._begin_sending(batch)
        if self._queued.changes >= notify_config.PUBLISH_QUEUE_MAX:
            self._changed.notify_all()
        load = load_of(batch) if self._queue else self._queued
        self._queued = self._queued.minus(load)
        batch.sort(key=_revision)
        return batch, load

    def _publish(self, batch: Sequence[Change], load: Load) -> None:
        """What the caller has begun to send.  Then another thread may send."""
        begun = time.monotonic()
        published: Sequence[Change] = ()
        refused: list[PublishRefusal] = []
        try:
            refused = self._publisher.publish(batch)
            published = batch
        except HeliographError as error:
            self._failed("published", error)
        except Exception:
            self.counters.failures += 1
            LOG.exception("After commit: publishing failed in an unforeseen way. The outbox has the changes.")
        if refused:
            without = {refusal.revision for refusal in refused}
            published = [change for change in batch if change.revision not in without]
        self._sent(load, published, len(refused), begun)
        if refused:
            self._log_refused(
                "After commit: %d changes cannot be published and stay in the outbox: %s", len(refused), refused[0]
            )

    def _sent(self, load: Load, published: Sequence[Change], refused: int, begun: float) -> None:
        with self._lock:
            now = time.monotonic()
            self._way.published(load, begun=begun, now=now)
            self._pace.published(now)
            self.counters.published += len(published)
            self._unconfirmed.extend(map(_revision, published))
            if len(published) < load.changes:
                self.counters.refused += refused
                self._leave(load.changes - len(published))
                if not published and not refused:
                    self._way.lost()
            while len(self._unconfirmed) > notify_config.PUBLISH_QUEUE_MAX:
                self._unconfirmed.popleft()
                self._leave(1)
            self._in_work = ()
            self._sender = None
            if self._is_hurried or self._is_closed:
                self._changed.notify_all()
            elif self._queue:
                self._wake_by(self._pace.due)
            else:
                self._wake_by(self._confirms_at())

    def _stop_sending(self) -> None:
        """An interrupt went through here: this thread does not go on.  What was lost by it is left to the sweeper."""
        with self._lock:
            if self._sender == threading.get_ident():
                self._in_work = ()
                self._sender = None
            self._queued = Load(0, 0)
            for changes in self._queue:
                self._queued = self._queued.plus(load_of(changes))
            in_hand = self._queued.changes + len(self._in_work) + len(self._unconfirmed)
            self._leave(max(self.counters.committed - self._settled() - in_hand, 0))
            self._changed.notify_all()

    # -- the thread

    def _run(self) -> None:
        while not self._is_over():
            work = self._await_work()
            if work is not None:
                self._publish(*work)
            if self._is_confirmation_due(time.monotonic()):
                self._confirm()

    def _is_over(self) -> bool:
        """It is closed, and nothing is left to do, or there is no more time for it."""
        if not self._is_closed:
            return False
        return (self._is_idle() and not self._unconfirmed) or time.monotonic() > self._ends_at

    def _await_work(self) -> tuple[list[Change], Load] | None:
        """All that waits, up to a batch; None when something else is to do.  Blocks while there is nothing to do."""
        with self._lock:
            while True:
                now = time.monotonic()
                if self._queue and self._sender is None and self._is_sending_due(now):
                    return self._take()
                if self._is_confirmation_due(now) or self._is_over():
                    return None
                # In a flood it looks at every pause, so that writers need not wake it.
                sends_at = self._pace.due if self._sender is None else math.inf
                self._looks_at = min(
                    sends_at if self._queue or sends_at > now else math.inf, self._confirms_at(), self._ends_at
                )
                rest_s = self._looks_at - now
                self._changed.wait(None if math.isinf(rest_s) else max(rest_s, 0.0))
                self._looks_at = -math.inf

    def _is_sending_due(self, now: float) -> bool:
        return self._is_hurried or self._is_closed or self._pace.is_due(self._queued.changes, now)

    def _is_idle(self) -> bool:
        """Nothing is published or waits for that."""
        return not self._queue and self._sender is None

    def _is_confirmation_due(self, now: float) -> bool:
        if not self._unconfirmed:
            self._is_hurried = self._is_hurried and not self._is_idle()
            return False
        # A caller waits, unless it has just failed.
        is_hurried = (self._is_hurried or self._is_closed) and self._is_idle() and self._failure is None
        return is_hurried or now >= self._confirms_at()

    def _confirms_at(self) -> float:
        """When it is to be looked whether what was published has left, or when it is to be taken out of the outbox."""
        if not self._unconfirmed:
            return math.inf
        if self._failure is not None or not self._way.is_proven:
            return self._last_flushed + _PROOF_PAUSE_S
        if self._way.is_full or len(self._unconfirmed) >= _UNCONFIRMED_MAX:
            return self._last_flushed + _FLUSH_PAUSE_S
        return self._last_confirmed + self._confirm_interval_s

    def _is_taken_out_due(self, now: float) -> bool:
        """Whether the outbox is to be told, too."""
        return (
            self._is_hurried
            or self._is_closed
            or self._failure is not None
            or len(self._unconfirmed) >= _UNCONFIRMED_MAX
            or now - self._last_confirmed >= self._confirm_interval_s
        )

    def _flush_publisher(self) -> None:
        """Wait until what was published is out of our hands.  Raises as `ChangePublisher.flush`."""
        mark, is_proven = self._way.mark(), True
        try:
            self._publisher.flush(timeout_s=max(min(self._timeout_s, self._ends_at - time.monotonic()), 0.0))
        except (LimitReached, NotPermitted):
            raise  # it was refused, and not held up
        except BaseException:
            is_proven = False
            raise
        finally:
            with self._lock:
                self._way.flushed(mark, is_proven=is_proven)

    def _confirm(self) -> None:
        """Wait until the changes are out of our hands, which writers need to know to publish themselves; and now and
        then take them out of the outbox."""
        with self._lock:
            revisions = list(self._unconfirmed)
            is_taken_out = self._is_taken_out_due(time.monotonic())
        try:
            self._flush_publisher()
            if is_taken_out:
                self._db.mark_published(revisions)
        except (LimitReached, NotPermitted) as error:
            # Which of them, is not known here; the sweeper, which publishes them again, finds out.
            self._log_refused("After commit: %s. %d changes are left to the sweeper.", error, len(revisions))
            with self._lock:
                self._leave(self._forget(revisions))
        except HeliographError as error:
            self._failed("confirmed", error)
        except Exception as error:
            LOG.exception("After commit: confirming failed in an unforeseen way. It will be tried again.")
            self._failed("confirmed", DbError(f"{type(error).__name__}: {error}"))
        else:
            with self._lock:
                if is_taken_out:
                    self.counters.confirmed += self._forget(revisions)
                if self._failure is not None:
                    LOG.info("After commit: changes are published again.")
                self._failure = None
                self._changed.notify_all()
        self._last_flushed = time.monotonic()
        if is_taken_out:
            self._last_confirmed = self._last_flushed

    def _forget(self, revisions: Sequence[int]) -> int:
        """They are not to be confirmed any more; returns of how many that was not known."""
        done, count = frozenset(revisions), 0
        while self._unconfirmed and self._unconfirmed[0] in done:  # what came meanwhile is behind them
            self._unconfirmed.popleft()
            count += 1
        return count

    def _leave(self, count: int) -> None:
        if count:
            self.counters.left += count
            self._changed.notify_all()

    def _failed(self, what: str, error: HeliographError) -> None:
        self.counters.failures += 1
        if self._failure is None:
            LOG.warning("After commit: changes could not be %s: %s. The outbox has them.", what, error)
        self._failure = error
