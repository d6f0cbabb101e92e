"""Waiting until a local cache has what its own program has written.

On a bus the copy knows of each object which version it holds, but of no other one whether something is missing.  So a
wait is for one object; when nothing is heard of it, the changes are read from the database, which decides: the object
has that version, or a later one, or is not followed, or the database has never given that version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nb_api.core.cache import CacheCore
from nb_api.errors import RevisionUnknown
from pubsub_api.errors import WaitTimeout

PATIENCE_S = 1.0
"""How long nothing may be heard of an object before the database is asked: live changes take a few milliseconds."""


class VersionWaits:
    """``changed`` guards it, and is notified when the copy has changed while somebody waits."""

    def __init__(
        self,
        core: CacheCore,
        changed: threading.Condition,
        need_delta: Callable[[str], None],
        *,
        is_read: Callable[[], bool],
        check: Callable[[], None],
    ) -> None:
        """``is_read``: whether the database was read, and nothing that was asked for waits.  ``check`` raises when the
        cache is closed."""
        self._core = core
        self._changed = changed
        self._need_delta = need_delta
        self._is_read = is_read
        self._check = check
        self.waiting = 0
        """Threads that wait: while there are any, `on_change` is to be called."""

    def on_change(self) -> None:
        """The copy has changed."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, revision: int, is_there: Callable[[], bool], what: str, timeout_s: float, patience_s: float) -> None:
        """Until ``is_there``, or everything up to ``revision`` is reflected.

        Raises WaitTimeout, Closed, RevisionUnknown when the database has never given that revision.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self.waiting += 1
            try:
                if self._wait(revision, is_there, min(patience_s, timeout_s / 2)):
                    return
                self._need_delta(f"{what} is awaited")
                while not self._wait(revision, is_there, max(deadline - time.monotonic(), 0.0), until_read=True):
                    if self._is_read():
                        raise RevisionUnknown(
                            f"{what} is awaited, and the database has only come to revision {self._core.position}",
                            newest_revision=self._core.position,
                        )
                    if time.monotonic() >= deadline:
                        raise WaitTimeout(f"{what} was not in the local cache within {timeout_s} s")
            finally:
                self.waiting -= 1

    def _wait(self, revision: int, is_there: Callable[[], bool], timeout_s: float, *, until_read: bool = False) -> bool:
        """Whether the copy is that far."""

        def is_far_enough() -> bool:
            self._check()
            return is_there() or (self._core.position >= revision and self._is_read())

        self._changed.wait_for(lambda: is_far_enough() or (until_read and self._is_read()), timeout_s)
        return is_far_enough()
