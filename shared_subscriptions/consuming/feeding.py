"""The threads of a member that read: one reads for all partitions that are held, one waits for the log to grow.

They are two so that a new partition is read at once, whatever the other one is waiting for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from durable_log.errors import LogCorrupt
from durable_log.log_api import LogApi
from pubsub_api.runtime.periodic import Failures, PeriodicThread
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from shared_subscriptions.consuming.marks import ReadMarks
from shared_subscriptions.consuming.memberships import Memberships
from shared_subscriptions.consuming.reading import GroupLogReader, offer
from shared_subscriptions.core.consuming.handler import Handler, LoanState

LOG = logging.getLogger(__name__)

_READ_EVENTS_MAX = 10_000
_WAIT_S = 0.25
"""How long a wait for shards that are not of interest any more may go on; closing may take as long."""
_IDLE_S = 5.0
"""The reader is woken when there is something to do; this is the longest wait should a wake-up be missing."""
_READ_ALL_S = 60.0
"""With many partitions, this often all are read that seemed to be at their end; in between the ends of shards are
looked at."""
_READ_AT_ONCE = 32
"""With more partitions that want events, only those are read that have grown."""
_ERROR_PAUSE_S = 0.2
_DAMAGES_KEPT = 10_000


class Feeder:
    """Reads outside the lock, and offers what it read under it."""

    def __init__(
        self,
        log: LogApi,
        handler: Handler,
        lock: threading.Condition,
        memberships: Memberships,
        *,
        tell: Callable[[], None],
        note: Callable[[], None],
        on_growth: Callable[[Mapping[int, int]], None],
    ) -> None:
        """``tell`` makes the protocol thread report what has changed, ``note`` lets it do so when it is due.  While
        this process leads a group, ``on_growth`` is told at once which shards have grown, and where they end."""
        self.log_errors = 0
        self._log_trouble = RateLimitedLog(LOG)
        self.undecodable = 0
        self.damaged = 0
        """Ranges of offsets that could not be read, each counted once."""
        self._damages: set[tuple[int, int]] = set()
        self._marks = ReadMarks(log)
        self._handler = handler
        self._lock = lock
        self._memberships = memberships
        self._tell, self._note, self._on_growth = tell, note, on_growth
        self._is_closed = False
        self._wakeup = threading.Event()
        self._watching = threading.Condition()
        self._ends: Mapping[int, int] = {}
        """Shards that are watched, and where they ended."""
        self._found: dict[int, int] = {}
        """Where all shards ended at the last look; a wait for more than that notices when it is stale."""
        self._is_stale = True
        self._read_all_at = 0.0
        self._is_counting = False
        """The ends of all shards are looked at."""
        self._hungry: list[LoanState] = []
        """Loans of which there may be more to read."""
        self._waiting: dict[int, dict[int, LoanState]] = {}
        """Shard -> loans that have read all of it."""
        self._known: dict[int, dict[int, int]] = {}
        """Subscription to a queue -> ends of shards that its leader was told."""
        self._announced: dict[int, int] = {}
        """The same for the groups that this process leads."""
        self._threads = [
            PeriodicThread(
                f"heliograph-group-{name}",
                step,
                Failures(LOG, "Shared subscription: the log cannot be read now"),
                pause_s=0.0,
                retry_s=_ERROR_PAUSE_S,
                at_once=True,
                on_failure=self._count,
            )
            for name, step in (("reader", self._feed), ("watcher", self._watch))
        ]

    def start(self) -> None:
        """Raises LimitReached."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There may be a new partition, or room in one that was full."""
        self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        for thread in self._threads:
            thread.ask_to_stop()
        self._wakeup.set()
        with self._watching:
            self._watching.notify_all()
        for thread in self._threads:
            thread.stop()

    @property
    def went_back(self) -> int:
        """Shards that were found in an older state than they had been read in, each time."""
        return self._marks.went_back

    def _count(self, _error: Exception) -> None:
        self.log_errors += 1

    # -- the reader

    def _feed(self) -> None:
        self._wakeup.clear()
        with self._lock:
            self._hungry += self._handler.take_hungry()
            queues = self._handler.idle_queues()
        self._tell_growth(queues)
        self._hungry += self._take_grown()  # and stay there should the log fail
        with self._lock:  # a loan that is full now says so when it has room again
            found = [loan for loan in self._hungry if self._handler.is_lent(loan) and loan.wants_events]
        more, damaged = list[LoanState](), list[LoanState]()
        for loan in found:
            reader = self._memberships.group_of(loan.subscription).reader
            shard, offset = reader.place(loan.partition).shard, loan.delivery.next_offset
            try:
                is_at_end = self._is_known_end(shard, offset) or not self._read(loan, reader)
            except LogCorrupt as error:  # which stops this partition, and no other
                self.log_errors += 1
                self._log_trouble("Shared subscription: a partition cannot be read now: %s", error)
                (more if self._passes_over(loan, shard, error) else damaged).append(loan)
                continue
            if is_at_end:
                self._waiting.setdefault(shard, {})[loan.number] = loan
            else:
                more.append(loan)
        self._hungry = more + damaged
        if damaged and not more:
            self._wakeup.wait(_ERROR_PAUSE_S)
            self._is_stale = True  # to wait for what cannot be read would end at once
        elif not more:
            self._wait_for_growth(queues)

    def _wait_for_growth(self, queues: list[int]) -> None:
        ends = dict(self._found) if queues or self._memberships.is_leading() else {}
        for shard, waiting in self._waiting.items():
            ends[shard] = min(loan.delivery.next_offset for loan in waiting.values())
        with self._watching:
            self._ends = ends
            self._watching.notify_all()
        if self._wakeup.wait(_IDLE_S):
            return
        self._is_stale = True
        if not self._is_counting or time.monotonic() >= self._read_all_at:
            self._read_all_at = time.monotonic() + _READ_ALL_S
            self._hungry = [loan for waiting in self._waiting.values() for loan in waiting.values()]
            self._waiting.clear()

    def _is_known_end(self, shard: int, offset: int) -> bool:
        """With many partitions, those are not read that end where the shard does."""
        return self._is_counting and not self._is_stale and offset >= self._found.get(shard, 0)

    def _take_grown(self) -> list[LoanState]:
        """Loans that waited for more, of shards that have grown; of all shards when it is not known which have."""
        grown = [
            shard
            for shard, waiting in self._waiting.items()
            if not self._is_counting
            or any(loan.delivery.next_offset < self._found.get(shard, 0) for loan in waiting.values())
        ]
        return [loan for shard in grown for loan in self._waiting.pop(shard).values()]

    def _passes_over(self, loan: LoanState, shard: int, error: LogCorrupt) -> bool:
        """Note what cannot be read; True when the rest of the loan can be read all the same."""
        if error.first is None or error.end is None:
            return False
        if (shard, error.end) not in self._damages:
            if len(self._damages) >= _DAMAGES_KEPT:
                self._damages.clear()
            self._damages.add((shard, error.end))
            self.damaged += 1
        with self._lock:
            offset = loan.delivery.next_offset
            if self._handler.is_lent(loan):
                loan.delivery.damage(error.first, error.end)
                self._note()
                if loan.is_complete:
                    self._tell()
            return loan.delivery.next_offset > offset

    def _read(self, loan: LoanState, reader: GroupLogReader) -> bool:
        shard = reader.place(loan.partition).shard
        if not loan.is_begun:
            proven = self._prove(shard) if loan.former is not None else 0
            with self._lock:
                self._handler.begin(loan, proven)
                if loan.is_complete:
                    self._tell()
                if not loan.wants_events:
                    return True
        piece = reader.read(loan, events_max=min(max(loan.delivery.room, 1), _READ_EVENTS_MAX))
        if piece is None:
            return False
        self.undecodable += piece.undecodable
        with self._lock:
            if self._handler.is_lent(loan) and offer(loan, piece):
                if piece.events:
                    self._lock.notify_all()
                else:
                    self._note()
                if loan.is_complete:
                    self._tell()
        if self._marks.is_due(shard):  # not before: the user does not wait for it
            self._prove(shard)
        self._marks.note(shard, piece.read_to, piece.appended_ns)
        return True

    def _prove(self, shard: int) -> int:
        """Up to which offset the shard is known to be what this process has read.  Raises LogError."""
        end, proven = self._marks.end(shard), self._marks.proven(shard)
        if proven is not None:
            return proven
        groups = self._memberships
        with self._lock:
            gone = self._handler.void(lambda number, part: groups.group_of(number).reader.place(part).shard == shard)
            firsts = {groups.name_of(loan.subscription): loan.granted.low for loan in sorted(gone, key=_latest_first)}
        for name, first in firsts.items():
            LOG.error(
                "Group %s: the log went back to an older state: what this member has read at offsets %d to %d of shard "
                "%d is not there any more, or not all of it. What it has acknowledged of that does not count; what is "
                "not done in the group's stored progress is delivered again.", name, first, max(first, end - 1), shard,
            )  # fmt: skip
        return 0

    def _tell_growth(self, queues: list[int]) -> None:
        """Where the log has grown: members hear it at once from their leader, and the leader of a queue from members
        that have time."""
        is_leading = self._memberships.is_leading()
        self._is_counting = bool(queues) or is_leading or len(self._handler.loans) > _READ_AT_ONCE
        if not self._is_counting:
            return
        if self._is_stale:
            self._is_stale = False
            self._found = {state.shard: state.end for state in self._marks.log.state()}
        found = self._found
        news = {shard: end for shard, end in found.items() if end > self._announced.get(shard, 0)}
        if is_leading and news:
            self._announced |= news
            self._on_growth(news)
        self._known = {number: self._known.get(number, {}) for number in queues}
        for number, known in self._known.items():
            grown = {shard: end for shard, end in found.items() if end > known.get(shard, 0)}
            if grown:
                known |= grown
                if self._memberships.group_of(number).leading.is_leading:
                    continue  # its leader has been told just now
                with self._lock:
                    self._handler.on_log_grown(number, grown)
                self._tell()

    # -- the watcher

    def _watch(self) -> None:
        with self._watching:
            self._watching.wait_for(lambda: self._is_closed or self._ends)
            ends = self._ends
        if not self._is_closed and self._marks.log.wait(ends, timeout_s=_WAIT_S):
            with self._watching:
                self._ends = {}  # the reader says anew what to wait for
            self._is_stale = True
            self._wakeup.set()


def _latest_first(loan: LoanState) -> int:
    return -loan.granted.low
