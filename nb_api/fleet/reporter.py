"""A member of the fleet: a thread that stores a report on the process in the database periodically.

The path of events has no additional work: the numbers are read when a report is made.  A report is stored beside the
objects (`nb_api.db_api.DbApi.tell_report`), so it is no change in the feed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from nb_api.cache.local_cache import LocalCache
from nb_api.coordination.leases import lease_clock
from nb_api.core.checks import check_name
from nb_api.db_api import DbApi
from nb_api.fleet.report import (
    FORMAT,
    INTERVAL_S_MAX,
    INTERVAL_S_MIN,
    NAME_CHARACTERS_MAX,
    FleetReport,
    digest_of,
    mark_of,
    read,
    summarise,
    write,
)
from pubsub_api.core.leases import LeaseProgress
from pubsub_api.errors import Forked, HeliographError, UsageError
from pubsub_api.reporting import ProcessReport
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.options import DAY_S
from pubsub_api.runtime.periodic import Failures, PeriodicThread

LOG = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Time between two reports, in a small fleet."""
REPORTS_PER_S = 200
"""Reports of all members together: in a larger fleet each member reports less often."""
_CLEAN_INTERVAL_S = 3600.0
"""How often a member looks for reports that are not renewed, in a small fleet."""
_CLEAN_MEMBERS = 500
"""In a larger fleet each member looks less often, so that all together look as often."""
_KEPT_S = DAY_S
"""A report that has not been renewed for so long is deleted."""

R = TypeVar("R", bound="FleetReporter")


@dataclasses.dataclass
class FleetReporterStatistics:
    reports: int = 0
    failures: int = 0
    """Reports that could not be made, or that the database refused.  The next one follows as usual."""
    bytes: int = 0
    """Size of the newest report."""
    members: int = 0
    """Reports of all members when the newest one was stored."""
    clashes: int = 0
    """How often another process was found to use the same name."""
    forgotten: int = 0
    """Reports of other members that were deleted because they had not been renewed for a day."""


class FleetReporter(Closeable):
    """Reports on the process from ``start`` to ``close``, which deletes the report.

    ``db`` is not closed.  ``process`` has the contents; ``caches`` give the digests of their copies.  ``interval_s``
    None: every second, and less often in a fleet of more than 200 members.  Thread-safe.  Does not work in a forked
    child: make a new one there.
    """

    def __init__(
        self,
        db: DbApi,
        process: ProcessReport,
        *,
        name: str = "",
        program_release: str = "",
        interval_s: float | None = None,
        caches: tuple[LocalCache, ...] = (),
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """``name`` must be the same after a restart, and different for each process; by default the host and the role.
        Raises InvalidObject, UsageError."""
        self.name = name or f"{socket.gethostname()}/{process.role}"
        check_name(self.name, "name of a member")
        if len(self.name) > NAME_CHARACTERS_MAX:
            raise UsageError(f"the name of a member has at most {NAME_CHARACTERS_MAX} characters, not {len(self.name)}")
        if interval_s is not None and not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            raise UsageError(f"an interval is {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} s, not {interval_s!r}")
        self.incarnation = secrets.token_hex(6)
        self._db = db
        self._process = process
        self._program_release = program_release[:NAME_CHARACTERS_MAX]
        self._interval_s = interval_s
        self._caches = caches
        self._clock = clock
        self._began = clock()
        self._key = self.name
        self._statistics = FleetReporterStatistics()
        self._progress = LeaseProgress(gap_max_s=_KEPT_S / 2)
        self._clean_at = self._began + random.uniform(0.5, 1.0) * _CLEAN_INTERVAL_S
        self._is_inherited = self._is_closed = False
        failures = Failures(LOG, f"{self.name} cannot report to the fleet", self._statistics)
        self._thread = PeriodicThread(f"fleet-{self.name}", self._work, failures, pause_s=self._pause_s, at_once=True)
        # In a thread of its own: a copy gives its digest only while its callback is not running, which may take long.
        self._digests: tuple[str, ...] = ()
        digest_failures = Failures(LOG, f"{self.name} cannot report the digest of its copy", self._statistics)
        self._digest_thread = PeriodicThread(
            f"fleet-digest-{self.name}", self._read_digests, digest_failures, pause_s=self._pause_s, at_once=True
        )
        forking.register(self)

    def start(self: R) -> R:
        """Begin.  Does not block.  Raises LimitReached, Forked."""
        if self._is_inherited:
            raise Forked("it belongs to the process that made it; make one in this process")
        self._thread.start()
        if self._caches:
            self._digest_thread.start()
        return self

    def __enter__(self: R) -> R:
        return self.start()

    def wait_done(self, *, timeout_s: float) -> bool:
        """Block until one report was stored; False when the time is over."""
        return self._thread.wait_done(timeout_s=timeout_s)

    def statistics(self) -> FleetReporterStatistics:
        return dataclasses.replace(self._statistics)

    def close(self) -> None:
        """Block until the thread has ended, and delete the report, if the database answers.  Idempotent."""
        if self._is_closed or self._is_inherited:
            return
        self._is_closed = True
        self._digest_thread.ask_to_stop()
        self._thread.stop()
        if self._statistics.reports:
            try:
                self._db.forget_reports([self._key])
            except HeliographError as error:
                LOG.info("The report of %s stays in the fleet: %s", self.name, error)

    def after_fork_in_child(self) -> None:
        self._is_inherited = True

    # -- the thread

    def _pause_s(self) -> float:
        return self._reported_interval_s() * random.uniform(0.9, 1.0)  # not in step with other members

    def _reported_interval_s(self) -> float:
        if self._interval_s is not None:
            return self._interval_s
        return min(INTERVAL_S_MAX, max(INTERVAL_S, self._statistics.members / REPORTS_PER_S))

    def _work(self) -> None:
        data = write(self._make())
        stored = self._db.tell_report(self._key, data)
        replaced = None if stored.before is None else read(stored.before)
        if self._statistics.reports and replaced is not None and replaced.incarnation != self.incarnation:
            self._resolve_clash(replaced, data)
        self._statistics.reports += 1
        self._statistics.bytes = len(data)
        self._statistics.members = stored.total
        if self._clock() >= self._clean_at:
            self._forget_dead()

    def _make(self) -> FleetReport:
        report = FleetReport(
            format=FORMAT,
            name=self.name,
            incarnation=self.incarnation,
            count=self._statistics.reports + self._statistics.failures + 1,
            interval_s=self._reported_interval_s(),
            host=socket.gethostname(),
            pid=os.getpid(),
            role=self._process.role,
            release=release(),
            program_release=self._program_release,
            told_at=time.time(),
            up_s=round(self._clock() - self._began, 3),
            failures=self._statistics.failures,
        )
        summarise(report, self._process.readings(), self._process.problems())
        for copy, digest in zip(report.copies, self._digests, strict=False):
            copy.digest = digest
        return report

    def _read_digests(self) -> None:
        self._digests = tuple(map(digest_of, self._caches))

    def _resolve_clash(self, other: FleetReport, data: bytes) -> None:
        """Another process reports under this name: use another key from now on, so that observers see both members."""
        self._statistics.clashes += 1
        LOG.warning(
            "%s is the name of two members of the fleet: process %d on %s uses it, too. Give each a name of its own.",
            self.name, other.pid, other.host,
        )  # fmt: skip
        shared, self._key = self._key, f"{self.name} #{self.incarnation}"
        self._db.tell_report(self._key, data)
        self._db.forget_reports([shared])

    def _forget_dead(self) -> None:
        """Delete the reports of processes that were killed and not started again."""
        found = self._db.reports()
        now = self._clock()
        self._progress.observe({key: mark_of(data) for key, data in found.items()}, now)
        dead = [key for key in found if self._progress.idle_s(key) >= _KEPT_S]
        if dead:
            self._db.forget_reports(dead)
            self._statistics.forgotten += len(dead)
        pause_s = _CLEAN_INTERVAL_S * max(1.0, len(found) / _CLEAN_MEMBERS)
        self._clean_at = now + random.uniform(0.75, 1.25) * pause_s


def release() -> str:
    """The installed release of Heliograph; empty when it is not installed as a package."""
    try:
        return importlib.metadata.version("heliograph")
    except importlib.metadata.PackageNotFoundError:
        return ""
