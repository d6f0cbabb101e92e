"""Numbered slots in the database: how many caches may read all of it at the same time, whoever and wherever they are.

A slot is an object; who creates it has it, and deletes it when done.  A holder that dies leaves it behind: a slot
whose version has not changed for the lease, as a waiting cache itself observes it, is taken over by compare-and-set.
No clock is compared with another.  Slots limit load and protect nothing, so who cannot get one for a long time, or may
not write, reads without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator

from nb_api.coordination.leases import REFUSED, TOPIC, LeaseProgress, lease_clock
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import HeliographError

LOG = logging.getLogger(__name__)

TABLE = f"{OWN_PREFIX}snapshot-slots"
_RENEWALS_PER_LEASE = 3
_LOOKS_PER_LEASE = 10


@dataclasses.dataclass(frozen=True)
class SlotSettings:
    count: int
    """0: no limit."""
    lease_s: float
    wait_max_s: float


@dataclasses.dataclass
class SlotCounters:
    held: int = 0
    waits: int = 0
    """Snapshots that had to wait for a slot."""
    taken_over: int = 0
    """Slots of holders that showed no progress."""
    lost: int = 0
    """Slots that were taken over from this cache."""
    without: int = 0
    """Snapshots read without a slot, because there was none for too long or the database took no write."""


class SnapshotLimit:
    """For one thread.  ``pause`` sleeps, and raises Closed when nobody waits any more."""

    def __init__(self, settings: SlotSettings, db: DbApi, pause: Callable[[float], None]) -> None:
        self._settings = settings
        self._db = db
        self._pause = pause
        self._holder = uuid.uuid4().hex
        self.counters = SlotCounters()

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        """Have a slot inside of the block.  Yields what is to be called now and then, to show progress.

        Raises Closed and DbUnavailable.
        """
        held = self._wait() if self._settings.count else None
        if held is None:
            yield lambda: None
            return
        try:
            yield held.renew
        finally:
            held.release()

    def _wait(self) -> _Held | None:
        deadline = time.monotonic() + self._settings.wait_max_s
        # Twice the pause: a look that is a little late still counts in full.
        progress = LeaseProgress(gap_max_s=2 * self._look_interval_s)
        has_waited = False
        while True:
            try:
                held = self._try(progress)
            except REFUSED:
                held = None  # somebody was faster
            except DbUnavailable:
                raise
            except DbError as error:
                self._go_without(f"they cannot be used: {error}")
                return None
            if held is not None:
                self.counters.held += 1
                return held
            if time.monotonic() > deadline:
                self._go_without(f"none was free for {self._settings.wait_max_s} s")
                return None
            self.counters.waits += not has_waited
            has_waited = True
            self._pause(self._look_interval_s * random.uniform(0.5, 1.5))

    def _go_without(self, why: str) -> None:
        self.counters.without += 1
        LOG.warning("Slots: %s. Reading without one.", why)

    def _try(self, progress: LeaseProgress) -> _Held | None:
        """A slot that is free or abandoned, None when there is none.  Raises what is in `REFUSED`, and DbError."""
        with self._db.snapshot([TABLE]) as snapshot:
            taken = {found.key: found.version for found in snapshot}
        progress.observe(taken, lease_clock())
        numbers = [str(number) for number in range(self._settings.count)]
        free = [key for key in numbers if key not in taken]
        if free:
            key = random.choice(free)
            return _Held(self, self._db, key, self._db.create(TABLE, key, self._holder, topic=TOPIC))
        for key in numbers:
            if progress.idle_s(key) > self._settings.lease_s:
                version = self._db.set(TABLE, key, self._holder, expected_version=taken[key])
                self.counters.taken_over += 1
                return _Held(self, self._db, key, version)
        return None

    @property
    def _look_interval_s(self) -> float:
        return self._settings.lease_s / _LOOKS_PER_LEASE

    @property
    def renew_interval_s(self) -> float:
        return self._settings.lease_s / _RENEWALS_PER_LEASE


class _Held:
    def __init__(self, slots: SnapshotLimit, db: DbApi, key: str, version: int) -> None:
        self._slots = slots
        self._db = db
        self._key = key
        self._version: int | None = version
        self._renewed = lease_clock()

    def renew(self) -> None:
        """Show progress, when it is time to."""
        now = lease_clock()
        if self._version is None or now < self._renewed + self._slots.renew_interval_s:
            return
        self._renewed = now
        self._guarded(lambda version: self._db.set(TABLE, self._key, now, expected_version=version))

    def release(self) -> None:
        self._guarded(lambda version: self._db.delete(TABLE, self._key, expected_version=version))

    def _guarded(self, write: Callable[[int], int]) -> None:
        """A slot that cannot be renewed or released is taken over by others after the lease: no reason to stop."""
        if self._version is None:
            return
        try:
            self._version = write(self._version)
        except REFUSED:
            self._version = None
            self._slots.counters.lost += 1
        except HeliographError as error:
            LOG.info("Slots: slot %s could not be renewed or released: %s", self._key, error)
