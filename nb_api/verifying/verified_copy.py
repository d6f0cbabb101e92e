"""The part of a local cache that proves it: digests, verifications when asked, and by itself every now and then."""

from __future__ import annotations

import abc
import logging
import random
import threading
from collections.abc import Callable, Sequence

from nb_api.api import NbApi
from nb_api.cache.reading.change_source import NO_BUS, ChangeSource
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.cache.reading.sync import CacheSync
from nb_api.cache.reading.sync_requests import SyncRequests
from nb_api.cache.telling.turn import Turn
from nb_api.coordination.snapshot_limit import SnapshotLimit
from nb_api.core.checks import check_not_negative
from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import Difference
from nb_api.core.copy.journal import ChangeJournal
from nb_api.core.digests import TableDigest
from nb_api.errors import CopyUnsettled
from nb_api.verifying.verification import Verification
from nb_api.verifying.verifier import Verifier
from pubsub_api.errors import Closed, HeliographError, UsageError
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_TIMEOUT_S = 600.0
"""For a verification that nobody waits for."""


class VerifiedCopy(Closeable):
    """What `nb_api.LocalCache` adds to this is the copy itself."""

    _core: CacheCore
    _turn: Turn
    _requests: SyncRequests
    _source: ChangeSource
    _verifier: Verifier
    _proving: PeriodicVerification

    def verify(self, *, timeout_s: float = 60.0, is_thorough: bool = False) -> Verification:
        """Compare the copy with the database as of one revision; what differs is repaired, told as any change, counted,
        logged as an error and returned.

        The versions of all objects are compared, by digests, and the values of some 20,000 objects, which are others
        each time; ``is_thorough`` compares all values and reads all objects for that.  What was committed and is still
        on its way is waited for.  Blocks; the copy is read and followed meanwhile.

        Raises CopyUnsettled when the copy is being read or the bus is away: try again later.  WaitTimeout,
        DbUnavailable, Closed; UsageError in a callback, which would wait for itself.
        """
        self._check_waiting()
        check_not_negative(timeout_s, "timeout_s")
        return self._verifier.verify(timeout_s=timeout_s, is_thorough=is_thorough)

    def digests(self) -> dict[str, TableDigest]:
        """How many objects of each table the copy has, and the sum of their versions: equal copies have equal ones.

        Costs nothing worth mentioning, and waits at most while a batch of changes is applied.
        """
        self._check_usable()
        with self._turn:
            return self._core.digests()

    def _set_up_proof(
        self,
        nb: NbApi,
        marks: HistoryMarks,
        sync: CacheSync,
        tables: Sequence[str] | None,
        interval_s: float | None,
    ) -> None:
        """Raises UsageError."""
        limit = SnapshotLimit(sync.slot_settings, nb.db, self.wait)
        self._verifier = Verifier(
            self, self._core, nb.db, marks,
            tables=tables, behind_s=sync.behind_s, limit=limit, turns=nb.snapshot_turns,
        )  # fmt: skip
        self._proving = PeriodicVerification(self._verifier, interval_s)

    def _check_waiting(self) -> None:
        self._check_usable()
        if self._turn.is_mine:
            raise UsageError("a callback cannot wait for the cache that calls it")

    @abc.abstractmethod
    def _check_usable(self) -> None:
        """Raises Closed, Forked."""

    # -- what the verifier calls

    @abc.abstractmethod
    def change(self, work: Callable[[], list[Difference]]) -> None: ...

    @abc.abstractmethod
    def filters(self) -> tuple[str, ...]: ...

    @abc.abstractmethod
    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def begin_journal(self) -> ChangeJournal:
        with self._turn:
            return self._core.begin_journal()

    def unsettled(self, *, has_doubts: bool) -> str:
        if not len(self._core.filters):
            return ""
        if not self._requests.is_read() or self._source.is_joining:
            return "objects are being read from the database, or have to be"
        why = self._source.unheard()
        return why if has_doubts or why == NO_BUS else ""

    def wait(self, seconds: float) -> None:
        with self._requests.changed:
            self._requests.changed.wait(seconds)
        self._check_usable()


class PeriodicVerification:
    """A thread that verifies a copy every now and then, until it is closed."""

    def __init__(self, verifier: Verifier, interval_s: float | None) -> None:
        """None: never.  Raises UsageError."""
        if interval_s is not None and not interval_s > 0:
            raise UsageError(f"verify_interval_s is a time in seconds above 0, or None, not {interval_s!r}")
        self._verifier = verifier
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heliograph-verification", daemon=True)

    def start(self) -> None:
        if self._interval_s is not None:
            self._thread.start()

    def close(self) -> None:
        """Waits for a verification that is running, unless it is called from there.  Close the copy first."""
        self._closed.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        # A thousand caches that were started together do not stay together.
        while not self._closed.wait((self._interval_s or 0.0) * random.uniform(0.75, 1.25)):
            try:
                self._verifier.verify(timeout_s=_TIMEOUT_S, is_thorough=False)
            except Closed:
                return
            except CopyUnsettled as error:
                LOG.info("LocalCache: %s", error)
            except Exception as error:
                self._verifier.counters.failures += 1
                LOG.warning(
                    "LocalCache: the copy could not be verified: %s", error,
                    exc_info=None if isinstance(error, HeliographError) else error,
                )  # fmt: skip
