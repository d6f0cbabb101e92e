"""The right to change the segments of a log on object storage: a lease, kept in a record of the log itself.

No lock of an object store ends with the process that holds it, so the right to seal is a record with a time at which
it ends, by the clock of the log's store.  That time only decides when another process may try.  What is safe does not
depend on it: each holder has an *epoch*, one above the last, and a change of the manifest names it.  The store compares
it in the transaction of that change (`durable_log.core.fence`), so a holder that was frozen, and replaced, changes
nothing any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator

from durable_log.core.fence import Fence, lease_lost
from durable_log.errors import LogCorrupt, LogUnavailable, RecordConflict, SealingBusy
from durable_log.log_api import LogApi, Record
from pubsub_api.runtime.periodic import Failures, PeriodicThread

LOG = logging.getLogger(__name__)

RECORD = "segments/lease"
LEASE_S = 30.0
"""How long a holder that died keeps others from sealing.  What is not sealed can be read meanwhile."""

_SECOND_NS = 1_000_000_000


class SealingLease:
    """The lease of one log, as one handle of it has it.  One thread at a time holds it; others are refused."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._token = secrets.token_hex(8)
        self._mutex = threading.Lock()
        self._epoch = 0

    @contextlib.contextmanager
    def held(self, log: LogApi) -> Iterator[None]:
        """Raises SealingBusy when another process holds it."""
        if not self._mutex.acquire(blocking=False):
            raise SealingBusy(f"another thread seals or compacts in {self._place} now")
        try:
            self._acquire(log)
            renewing = PeriodicThread(
                "heliograph-log-lease", lambda: self._renew(log),
                Failures(LOG, f"The lease for sealing in {self._place} cannot be renewed"), pause_s=LEASE_S / 3,
            )  # fmt: skip
            try:
                renewing.start()
                yield
            finally:
                renewing.stop()
                self._release(log)
        finally:
            self._mutex.release()

    def fence(self) -> Fence:
        return Fence(RECORD, self._mark())

    def _mark(self) -> bytes:
        """The process is in it: a child that was forked is another holder."""
        return f"{self._epoch:020d} {self._token}.{os.getpid()} ".encode()

    def _value(self, ends_ns: int) -> bytes:
        return self._mark() + str(ends_ns).encode()

    def _acquire(self, log: LogApi) -> None:
        found, now_ns = log.get_record(RECORD), log.now_ns()
        epoch, holder, ends_ns = (0, "", 0) if found is None else _parse(found)
        left_ns = ends_ns - now_ns
        # A lease that ends later than any lease could was given before the clock was set back.  One with our own name
        # was given to us by a write whose answer did not come.
        is_free = left_ns <= 0 or left_ns > 2 * LEASE_S * _SECOND_NS or holder == f"{self._token}.{os.getpid()}"
        if not is_free:
            raise SealingBusy(
                f"another process seals or compacts in {self._place} now; if it has died, its lease ends in "
                f"{left_ns // _SECOND_NS + 1} s"
            )
        self._epoch = epoch + 1
        value = self._value(now_ns + int(LEASE_S * _SECOND_NS))
        try:
            log.put_records([(RECORD, value, 0 if found is None else found.version)])
        except RecordConflict as error:
            raise SealingBusy(f"another process has begun to seal or compact in {self._place} just now") from error

    def _renew(self, log: LogApi, *, for_s: float | None = None) -> None:
        """Raises LeaseLost, LogUnavailable."""
        duration_s = LEASE_S if for_s is None else for_s
        found = log.get_record(RECORD)  # its version may be of a renewal whose answer did not come
        self.fence().check(None if found is None else found.value)
        assert found is not None
        value = self._value(log.now_ns() + int(duration_s * _SECOND_NS))
        try:
            log.put_records([(RECORD, value, found.version)])
        except RecordConflict as error:
            raise lease_lost() from error

    def _release(self, log: LogApi) -> None:
        try:
            self._renew(log, for_s=0.0)
        except LogUnavailable as error:
            LOG.info("The lease for sealing in %s is not given back, and ends by itself: %s", self._place, error)


def _parse(record: Record) -> tuple[int, str, int]:
    """Raises LogCorrupt."""
    try:
        epoch, holder, ends_ns = record.value.decode().split(" ")
        return int(epoch), holder, int(ends_ns)
    except ValueError as error:
        raise LogCorrupt(f"the record {RECORD!r}, which says which process may seal, is damaged: {error}") from error
