"""The reader thread of a member: keeps the lanes of all held streams supplied from the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from durable_log.errors import LogError
from durable_log.log_api import LogApi
from pubsub_api.errors import Closed
from shared_subscriptions.core.handler import Handler, LoanState
from shared_subscriptions.reading import Reader, offer

LOG = logging.getLogger(__name__)

_READ_EVENTS_MAX = 10_000
_WAIT_S = 0.1
"""How long a wait for new events may keep the thread from noticing a new grant."""
_IDLE_S = 0.1
_ERROR_PAUSE_S = 0.2


class Feeder:
    """Reads outside the lock, and puts what it read into the lanes under it."""

    def __init__(
        self, log: LogApi, handler: Handler, lock: threading.Condition, reader_of: Callable[[int], Reader]
    ) -> None:
        self.log_errors = 0
        self.undecodable = 0
        self._log = log
        self._handler = handler
        self._lock = lock
        self._reader_of = reader_of
        self._is_closed = False
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heliograph-group-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There may be a new stream."""
        self._wakeup.set()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()
        with self._lock:
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._feed()
            except Closed:
                return
            except LogError as error:
                self.log_errors += 1
                LOG.warning("Shared subscription: the log cannot be read now: %s", error)
                self._sleep(_ERROR_PAUSE_S)
            except Exception:
                self.log_errors += 1
                LOG.exception("Shared subscription: reading failed; it goes on")
                self._sleep(_ERROR_PAUSE_S)

    def _feed(self) -> None:
        self._wakeup.clear()
        with self._lock:
            hungry = [(loan, self._reader_of(loan.subscription)) for loan in self._handler.loans if loan.wants_events]
            if not hungry:
                # Streams that are full wait for the user, and every settled event may make room.
                self._lock.wait(_IDLE_S)
                return
        waits: dict[int, int] = {}
        is_at_end = True
        for loan, reader in hungry:
            if self._read(loan, reader):
                is_at_end = False
            else:
                shard, offset = reader.place(loan.stream).shard, loan.lanes.next_offset
                waits[shard] = min(waits.get(shard, offset), offset)
        if is_at_end:
            self._wait_for_news(waits)

    def _wait_for_news(self, waits: Mapping[int, int]) -> None:
        """Wait until a shard has grown, or there may be another stream to read, or room in one that was full."""
        has_grown = False
        while not has_grown and not self._wakeup.is_set() and not self._is_closed:
            with self._lock:
                if any(loan.lanes.is_full for loan in self._handler.loans):
                    self._lock.wait(_IDLE_S)
                    return
            has_grown = self._log.wait(waits, timeout_s=_WAIT_S)

    def _read(self, loan: LoanState, reader: Reader) -> bool:
        portion = reader.read(loan, events_max=min(max(loan.lanes.room, 1), _READ_EVENTS_MAX))
        if portion is None:
            return False
        self.undecodable += portion.undecodable
        with self._lock:
            if self._handler.is_lent(loan) and offer(loan, portion):
                self._lock.notify_all()
        return True

    def _sleep(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._is_closed and not self._wakeup.is_set():
            rest_s = deadline - time.monotonic()
            if rest_s <= 0:
                return
            self._wakeup.wait(rest_s)
