"""How many caches may read all of a database at the same time, in all processes on all hosts together.

There are so many *slots*, each an object in the database.  A cache that creates it holds it, and deletes it when done.
A holder that dies leaves it behind: a slot whose version has not changed for the lease, as a waiting cache itself
observes it, is taken over by compare-and-set (`pubsub_api.core.leases`).  Slots limit load and protect nothing, so a
cache that gets none for a long time reads without.

So it does when the database takes no writes: its disk is full, it is a standby, or this user may not write.  It has
tried again after a pause by chance, so that caches which start together do not read together, and those of one process
still take turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from nb_api.coordination.leases import REFUSED, TOPIC, lease_clock
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from nb_api.errors import VersionConflict
from pubsub_api.core.leases import LeaseProgress, LeaseWrites
from pubsub_api.errors import Closed, HeliographError
from pubsub_api.runtime import forking

LOG = logging.getLogger(__name__)

TABLE = f"{OWN_PREFIX}snapshot-slots"
PROCESS_READERS_MAX = 2
"""Caches of one process that read all objects, or wait for a slot to do so, at the same time.  A hundred that look for
a slot would open as many connections, and slow down those that have one."""
PROCESS_DELTAS_MAX = 4
"""The same of those that read changes, or the objects of a new topic, which needs no slot.  Hundreds that lose their
link at the same time would ask a server for more connections than it gives."""
TURN_S = 1.0
"""A cache that waits for its turn asks again after so long: the one that was told that there is one may be closed."""
_RENEWALS_PER_LEASE = 3
_LOOKS_PER_LEASE = 10


class NoTurn(Exception):
    """Other caches of this process have all turns now."""


@dataclasses.dataclass(frozen=True)
class SnapshotLimitSettings:
    count: int
    """0: no limit."""
    lease_s: float
    wait_max_s: float


@dataclasses.dataclass
class SnapshotLimitCounters:
    held: int = 0
    waits: int = 0
    """How often a snapshot had to wait: for those of other caches of the process, or for a slot."""
    taken_over: int = 0
    """Slots of holders that showed no progress."""
    lost: int = 0
    """Slots that were taken over from this cache."""
    without: int = 0
    """Snapshots read without a slot, because there was none for too long or the database took no writes."""


class ProcessTurns:
    """Turns of the caches of one process to read the database.  For any thread; in a forked child no cache has one.

    Taking one does not block: a hundred caches that wait for their turn need no hundred threads.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._free = self._count
        self._waiting: deque[Callable[[], None]] = deque()

    @contextlib.contextmanager
    def take(self, when_free: Callable[[], None]) -> Iterator[None]:
        """Have a turn inside of the block.  Raises NoTurn when all are taken: ``when_free`` is called when one ends,
        of as many callers as turns have ended, and the others ask again after `TURN_S`."""
        lock = self._lock
        with lock:
            if not self._free:
                if when_free not in self._waiting:
                    self._waiting.append(when_free)
                raise NoTurn("as many caches of this process as may are reading the database")
            self._free -= 1
            if when_free in self._waiting:
                self._waiting.remove(when_free)
        try:
            yield
        finally:
            if lock is self._lock:  # else the block has forked, and this is the child
                with lock:
                    self._free += 1
                    waiting = self._waiting.popleft() if self._waiting else None
                if waiting is not None:
                    waiting()

    @contextlib.contextmanager
    def wait(self, pause: Callable[[float], None], counters: SnapshotLimitCounters) -> Iterator[None]:
        """As `take`, for a thread that may wait.  ``pause`` is called now and then, and raises Closed in the end."""
        is_free, has_waited = threading.Event(), False
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(self.take(is_free.set))
                    break
                except NoTurn:
                    counters.waits += not has_waited
                    has_waited = True
                    is_free.wait(TURN_S / 4)
                    is_free.clear()
                    pause(0.0)
            yield


class SnapshotLimit:
    """For one thread.  ``pause`` sleeps, and raises Closed when the cache is closed."""

    def __init__(self, settings: SnapshotLimitSettings, db: DbApi, pause: Callable[[float], None]) -> None:
        self._settings = settings
        self._db = db
        self._pause = pause
        self.holder = uuid.uuid4().hex
        """What tells the slots of this process from those of others."""
        self.counters = SnapshotLimitCounters()

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        """Have a slot inside of the block.  Yields what is to be called now and then, to show progress.

        Raises Closed, and DbError when the database cannot be read.
        """
        held = self._wait() if self._settings.count else None
        if held is None:
            yield lambda: None
            return
        try:
            yield held.renew
        finally:
            held.release()

    def _wait(self) -> _HeldSlot | None:
        """None: go without.  Raises Closed, and DbError when the slots cannot be read."""
        begun = time.monotonic()
        unwritable_since: float | None = None
        # Twice the pause: a look that is a little late still counts in full.
        progress = LeaseProgress(gap_max_s=2 * self._look_interval_s)
        has_waited = False
        while True:
            taken, looked_at = self._look(), time.monotonic()
            progress.observe(taken, lease_clock())
            try:
                held = self._take(taken, progress)
                unwritable_since = None
            except REFUSED:
                held = None  # another cache was faster
            except Closed:
                raise
            except HeliographError as error:
                held = None
                unwritable_since = looked_at if unwritable_since is None else unwritable_since
                if time.monotonic() - unwritable_since >= self._look_interval_s:
                    self._go_without(f"the database takes no writes: {error}")
                    return None
            if held is not None:
                self.counters.held += 1
                return held
            if time.monotonic() > begun + self._settings.wait_max_s:
                self._go_without(f"none was free for {self._settings.wait_max_s} s")
                return None
            self.counters.waits += not has_waited
            has_waited = True
            self._pause(self._look_interval_s * random.uniform(0.5, 1.5))

    def _go_without(self, why: str) -> None:
        self.counters.without += 1
        LOG.warning("Snapshot limit: no slot can be had, %s. Reading without one.", why)

    def _look(self) -> dict[str, int]:
        """The slots that are taken, with their versions."""
        with self._db.snapshot([TABLE]) as snapshot:
            return {found.key: found.version for found in snapshot}

    def _take(self, taken: Mapping[str, int], progress: LeaseProgress) -> _HeldSlot | None:
        """A slot that is free or abandoned, None when there is none.  Raises what is in `REFUSED`, and what a write
        raises."""
        numbers = [str(number) for number in range(self._settings.count)]
        free = [key for key in numbers if key not in taken]
        if free:
            key = random.choice(free)
            return _HeldSlot(self, self._db, key, self._db.create(TABLE, key, self.holder, topic=TOPIC))
        for key in numbers:
            if progress.idle_s(key) > self._settings.lease_s:
                version = self._db.set(TABLE, key, self.holder, expected_version=taken[key])
                self.counters.taken_over += 1
                return _HeldSlot(self, self._db, key, version)
        return None

    @property
    def _look_interval_s(self) -> float:
        return self._settings.lease_s / _LOOKS_PER_LEASE

    @property
    def renew_interval_s(self) -> float:
        return self._settings.lease_s / _RENEWALS_PER_LEASE


class _HeldSlot:
    def __init__(self, limit: SnapshotLimit, db: DbApi, key: str, version: int) -> None:
        self._limit = limit
        self._db = db
        self._key = key
        self._writes = LeaseWrites()
        self._writes.version = version
        self._tried_at = lease_clock()
        self._is_lost = False

    def renew(self) -> None:
        """Show progress, when it is time to."""
        now = lease_clock()
        if now >= self._tried_at + self._limit.renew_interval_s:
            self._tried_at = now
            mark = f"{self._limit.holder} {now}"
            self._write(mark, lambda version: self._db.set(TABLE, self._key, mark, expected_version=version))

    def release(self) -> None:
        self._write("", lambda version: self._db.delete(TABLE, self._key, expected_version=version))

    def _write(self, mark: str, write: Callable[[int], int]) -> None:
        """A slot that cannot be renewed or released is taken over by others after the lease: no reason to stop."""
        if self._is_lost:
            return
        try:
            if self._writes.is_uncertain:
                # A renewal was not answered: find out whether it was carried out. Raises what is in `REFUSED`.
                found = self._db.get(TABLE, self._key)
                if self._writes.settle(str(found.value), found.version) == "overtaken":
                    raise VersionConflict(f"slot {self._key} was taken over")
            self._writes.begin(mark, self._tried_at)
            self._writes.done(write(self._writes.version))
        except REFUSED:
            self._is_lost = True
            self._limit.counters.lost += 1
        except HeliographError as error:
            self._writes.unknown()
            LOG.info("Snapshot limit: slot %s could not be renewed or released: %s", self._key, error)
