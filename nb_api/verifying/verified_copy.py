"""The part of a local cache that verifies its copy: digests, and verifications on request and periodically."""

from __future__ import annotations

import abc
import logging
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
from pubsub_api.errors import UsageError
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread, with_jitter

LOG = logging.getLogger(__name__)

_TIMEOUT_S = 600.0
"""For a periodic verification."""


class VerifiedCopy(Closeable):
    """Base of `nb_api.LocalCache`, which adds the copy itself."""

    _core: CacheCore
    _turn: Turn
    _requests: SyncRequests
    _source: ChangeSource
    _verifier: Verifier
    _periodic_verification: PeriodicThread | None

    def verify(self, *, timeout_s: float = 60.0, is_thorough: bool = False) -> Verification:
        """Compare the copy with the database as of one revision.  Differences are repaired, delivered as any change,
        counted, logged as errors and returned.

        It compares the versions of all objects, by digests, and the values of about 20,000 objects, other ones each
        time; ``is_thorough`` reads all objects and compares all values.  Blocks, also for changes that were committed
        and have not arrived yet; the copy can be read, and follows changes, meanwhile.

        Raises CopyUnsettled when the copy is being read or the bus cannot be reached: try again later.  WaitTimeout,
        DbUnavailable, Closed; UsageError in a callback, which would wait for itself.
        """
        self._check_waiting()
        check_not_negative(timeout_s, "timeout_s")
        return self._verifier.verify(timeout_s=timeout_s, is_thorough=is_thorough)

    def digests(self) -> dict[str, TableDigest]:
        """Table -> number of its objects in the copy and the sum of their versions: equal copies have equal digests.

        Cheap.  Blocks at most while a batch of changes is applied.
        """
        self.check_usable()
        with self._turn:
            return self._core.digests()

    def _set_up_verification(
        self,
        nb: NbApi,
        marks: HistoryMarks,
        sync: CacheSync,
        tables: Sequence[str] | None,
        interval_s: float | None,
    ) -> None:
        """Raises UsageError.  ``interval_s``: of periodic verifications; None: there are none."""
        if interval_s is not None and not interval_s > 0:
            raise UsageError(f"verify_interval_s is a time in seconds above 0, or None, not {interval_s!r}")
        limit = SnapshotLimit(sync.slot_settings, nb.db, self.wait)
        self._verifier = Verifier(self, self._core, nb, marks, tables=tables, behind_s=sync.behind_s, limit=limit)
        self._periodic_verification = None
        if interval_s is not None:
            failures = Failures(LOG, "LocalCache: the copy could not be verified", self._verifier.counters)
            self._periodic_verification = PeriodicThread(
                "heliograph-verification", self._verify_once, failures, pause_s=with_jitter(interval_s)
            )

    def _start_verification(self) -> None:
        """Raises LimitReached."""
        if self._periodic_verification is not None:
            self._periodic_verification.start()

    def _stop_verification(self) -> None:
        """Block until the running verification has ended, unless it calls this.  Close the copy first."""
        if self._periodic_verification is not None:
            self._periodic_verification.stop()

    def _verify_once(self) -> None:
        try:
            self._verifier.verify(timeout_s=_TIMEOUT_S, is_thorough=False)
        except CopyUnsettled as error:
            LOG.info("LocalCache: %s", error)

    def _check_waiting(self) -> None:
        self.check_usable()
        if self._turn.is_mine:
            raise UsageError("a callback cannot wait for the cache that calls it")

    @abc.abstractmethod
    def check_usable(self) -> None:
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
        self.check_usable()
