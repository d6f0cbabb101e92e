"""The thread that writes: takes what is queued, does all of it in one transaction, and says how far it came."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from durability_service.core.effects import StoreSamples
from durability_service.errors import StoreFailed
from durability_service.storage.store import SampleStore

LOG = logging.getLogger(__name__)

_TRANSACTION_OPERATIONS = 10_000
_PURGE_PAUSE_S = 1.0

SnapshotRequest = tuple[int, Sequence[str]]
"""Number of the request, topic filters."""


class StoreWriter:
    """Owns the store.  ``on_stored`` is called with the number of the last operation that is durable, ``on_snapshot``
    with the number of a request and what became of it, ``on_failure`` once, when nothing more can be written."""

    def __init__(
        self,
        store: SampleStore,
        snapshot_directory: str,
        *,
        on_stored: Callable[[int], None],
        on_snapshot: Callable[[int, str], None],
        on_failure: Callable[[StoreFailed], None],
    ) -> None:
        self._store = store
        self._snapshot_directory = snapshot_directory
        self._on_stored = on_stored
        self._on_snapshot = on_snapshot
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[StoreSamples | SnapshotRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.queued = 0
        """Number of the last operation asked for."""
        self.done = 0
        """Number of the last operation that is durable."""
        self.moved_at = time.monotonic()
        self.transactions = 0
        self._is_failed = False
        self._thread = threading.Thread(target=self._run, name="heliograph-durability-store", daemon=True)
        self._thread.start()

    def put(self, effect: StoreSamples) -> None:
        self.queued = effect.number
        self._queue.put(effect)

    def snapshot(self, number: int, filters: Sequence[str]) -> None:
        self._queue.put((number, list(filters)))

    @property
    def lag(self) -> int:
        return self.queued - self.done

    def wait_room(self, lag_max: int, timeout_s: float) -> None:
        """Block while more than this many operations are under way, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: self.lag < lag_max or self._is_failed, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what is queued, then close the store.  False when that took too long."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            LOG.error("Durability: the store did not finish within %s s; %d operations are left.", timeout_s, self.lag)
            return False
        self._store.close()
        return True

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._work()
            except StoreFailed as error:
                self._is_failed = True
                LOG.error("Durability: nothing more can be written: %s", error)
                self._on_failure(error)
                return

    def _work(self) -> bool:
        """One transaction; False when it was the last."""
        try:
            item = self._queue.get(timeout=_PURGE_PAUSE_S)
        except queue.Empty:
            self.moved_at = time.monotonic()
            self._store.purge()
            return True
        effects: list[StoreSamples] = []
        while isinstance(item, StoreSamples):
            effects.append(item)
            if len(effects) >= _TRANSACTION_OPERATIONS or self._queue.empty():
                self._do(effects)
                return True
            item = self._queue.get()
        self._do(effects)
        return self._other(item)

    def _do(self, effects: Sequence[StoreSamples]) -> None:
        if not effects:
            return
        self._store.do([effect.operation for effect in effects])
        self.transactions += 1
        with self._changed:
            self.done = effects[-1].number
            self.moved_at = time.monotonic()
            self._changed.notify_all()
        self._on_stored(self.done)

    def _other(self, item: SnapshotRequest | None) -> bool:
        if item is None:
            return False
        number, filters = item
        try:
            self._on_snapshot(number, str(self._store.snapshot(self._snapshot_directory, filters)))
        except StoreFailed as error:
            LOG.error("Durability: the snapshot failed: %s", error)
            self._on_snapshot(number, f"failed: {error}")
        return True
