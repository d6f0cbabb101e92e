"""Waiting until a local cache is complete, or has what its own program has written.

On a bus the copy knows of each object which version it holds, but of no other one whether something is missing.  So a
wait is for one object; when nothing is heard of it, the changes are read from the database, which decides: the object
has that version, or a later one, or is not followed, or the database has never given that version.

Threads and coroutines wait by the same steps (`pubsub_api.runtime.coroutines`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Protocol

from nb_api.cache.reading.sync_requests import SyncRequests
from nb_api.cache.telling.turn import Turn
from nb_api.core.checks import check_revision
from nb_api.core.copy.cache import CacheCore
from nb_api.db_api import DbObject
from nb_api.errors import RevisionUnknown
from pubsub_api.errors import UsageError, WaitTimeout
from pubsub_api.runtime.coroutines import WaitSteps

PATIENCE_S = 1.0
"""How long nothing may be heard of an object before the database is asked: live changes take a few milliseconds."""


class AwaitedCopy(Protocol):
    """The cache whose copy is waited for."""

    def is_read(self) -> bool:
        """Everything was read from the database that had to be."""

    def is_synced(self) -> bool:
        """The same, or the resync source has stood in for the database."""

    def need_delta(self, reason: str) -> None: ...


class CacheWaits:
    """``changed``, that of the requests, guards it, and is notified when the copy has changed during a wait."""

    def __init__(
        self, copy: AwaitedCopy, core: CacheCore, requests: SyncRequests, turn: Turn, *, patience_s: float
    ) -> None:
        """``patience_s``: how long the copy may take to come to a revision before the database is read."""
        self._copy = copy
        self._core = core
        self._requests = requests
        self.changed = requests.changed
        self.check = turn.check
        self._turn = turn
        self._patience_s = patience_s
        self.waiting = 0
        """Threads and coroutines that wait: while there are any, `on_change` is to be called."""

    def on_change(self) -> None:
        """The copy has changed."""
        with self.changed:
            self.changed.notify_all()

    def version(self, table: str, key: str, version: int, timeout_s: float) -> WaitSteps[DbObject | None]:
        """See `LocalCache.wait_version`."""
        self._check_waiting()
        check_revision(version, "version")
        self._core.check_followed([table])
        return self._version(table, key, version, timeout_s)

    def _version(self, table: str, key: str, version: int, timeout_s: float) -> WaitSteps[DbObject | None]:
        core, what = self._core, f"version {version} of {table} {key!r}"
        if not core.reflects(table, key, version) and len(core.filters):
            is_there = functools.partial(core.reflects, table, key, version)
            yield from self._wait(version, is_there, what, timeout_s, PATIENCE_S)
        return core.find(table, key)

    def revision(self, revision: int, timeout_s: float) -> WaitSteps[None]:
        """See `LocalCache.wait_revision`."""
        self._check_waiting()
        check_revision(revision)
        return self._revision(revision, timeout_s)

    def _revision(self, revision: int, timeout_s: float) -> WaitSteps[None]:
        if len(self._core.filters):
            yield from self._wait(revision, lambda: False, f"revision {revision}", timeout_s, self._patience_s)

    def synced(self, timeout_s: float) -> WaitSteps[None]:
        """See `LocalCache.wait_synced`."""
        self.check()
        return self._synced(timeout_s)

    def _synced(self, timeout_s: float) -> WaitSteps[None]:
        def is_synced() -> bool:
            self.check()
            return self._copy.is_synced()

        yield is_synced, timeout_s
        if not is_synced():
            state = "objects were read" if self._requests.is_loaded else "the first snapshot was not read"
            raise WaitTimeout(f"the local cache was not complete within {timeout_s} s ({state})")

    def _check_waiting(self) -> None:
        """Before any lock is taken: that of a forked child may be held for ever."""
        self.check()
        if self._turn.is_mine:
            raise UsageError("a callback cannot wait for the cache that calls it")

    def _wait(
        self, revision: int, is_there: Callable[[], bool], what: str, timeout_s: float, patience_s: float
    ) -> WaitSteps[None]:
        """Until ``is_there``, or everything up to ``revision`` is reflected.

        Raises WaitTimeout, Closed, RevisionUnknown when the database has never given that revision.
        """
        core = self._core
        deadline = time.monotonic() + timeout_s

        def is_far_enough() -> bool:
            self.check()
            return is_there() or (core.position >= revision and self._copy.is_read())

        self.waiting += 1
        try:
            yield is_far_enough, min(patience_s, timeout_s / 2)
            if is_far_enough():
                return
            self._copy.need_delta(f"{what} is awaited")
            while True:
                yield (lambda: is_far_enough() or self._copy.is_read()), max(deadline - time.monotonic(), 0.0)
                if is_far_enough():
                    return
                if self._copy.is_read():
                    raise RevisionUnknown(
                        f"{what} is awaited, and the database has only come to revision {core.position}",
                        newest_revision=core.position,
                    )
                if time.monotonic() >= deadline:
                    raise WaitTimeout(f"{what} was not in the local cache within {timeout_s} s")
        finally:
            self.waiting -= 1
