"""What a process tells of itself: one report for any number of sessions and other objects."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pubsub_api import tracing
from pubsub_api.core.errors import Closed
from pubsub_api.reporting.families import Family, Reading, gather
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from pubsub_api.session import Session

LOG = logging.getLogger(__name__)

Read = Callable[[], Iterable[Reading]]
Check = Callable[[], str]
"""Returns an empty string when all is well, and what is wrong otherwise.  Must not block."""


class ReportRegistration:
    """What was added to a report.  `close` takes it out again; idempotent."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def close(self) -> None:
        self._remove()


class ProcessReport:
    """Gathers numbers and checks when it is asked for them.  Every method may be called from any thread.

    Something added that was closed meanwhile is left out.  Something that raises is left out, logged now and then and
    counted as ``source_failures``: the rest is told all the same.
    """

    def __init__(self, *, name: str = "", role: str = "program") -> None:
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.role = role
        self._started = time.time()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._sources: dict[int, Read] = {}
        self._checks: dict[int, tuple[str, Check, bool]] = {}
        self._source_failures = 0
        self._log = RateLimitedLog(LOG)

    # -- what is told

    def add(self, role: str, statistics: Callable[[], object], *, name: str = "") -> ReportRegistration:
        """Tell the statistics of an object, such as ``add("local_cache", cache.statistics)``."""
        return self.add_source(lambda number: [Reading(role, {"number": str(number), "name": name}, statistics())])

    def add_session(self, session: Session, *, name: str = "") -> ReportRegistration:
        """Tell the statistics of all publishers, subscribers and caches of a session; ``name`` tells it from others."""

        def read(number: int) -> list[Reading]:
            label = name or str(number)
            return [
                Reading(
                    role,
                    {"session": label, "number": str(child), "name": getattr(statistics, "name", "")},
                    statistics,
                )
                for role, child, statistics in session.statistics()
            ]

        return self.add_source(read)

    def add_source(self, read: Callable[[int], Iterable[Reading]]) -> ReportRegistration:
        """Tell whatever ``read`` returns.  It is given a number that is its own, for a label."""
        number = next(self._numbers)
        with self._lock:
            self._sources[number] = lambda: read(number)
        return ReportRegistration(lambda: self._forget(number))

    def add_check(self, name: str, check: Check, *, is_vital: bool = False) -> ReportRegistration:
        """A reason not to be ready.  ``is_vital``: a reason to start the process anew."""
        number = next(self._numbers)
        with self._lock:
            self._checks[number] = (name, check, is_vital)
        return ReportRegistration(lambda: self._forget(number))

    def _forget(self, number: int) -> None:
        with self._lock:
            self._sources.pop(number, None)
            self._checks.pop(number, None)

    # -- telling it

    def families(self) -> list[Family]:
        """Every metric, once."""
        return gather(self.readings())

    def readings(self) -> Iterator[Reading]:
        """The statistics of everything that was added, and of the process itself."""
        with self._lock:
            sources = list(self._sources.items())
        for number, read in sources:
            try:
                readings = list(read())
                gather(readings)  # what cannot be told fails here, where it is known whose it is
            except Closed:
                self._forget(number)
            except Exception as error:  # noqa: BLE001  one that cannot tell must not silence the others
                self._source_failures += 1
                self._log("Something of this process cannot tell its numbers: %s: %s", type(error).__name__, error)
            else:
                yield from readings
        own = {
            "start_time_seconds": self._started,
            "is_ready": not self.problems(),
            "source_failures": self._source_failures,
            "trace_failures": tracing.failures(),
        }
        yield Reading("process", {"name": self.name, "role": self.role}, own)

    def problems(self, *, only_vital: bool = False) -> list[str]:
        """What is wrong now, in words; empty when all is well."""
        with self._lock:
            checks = [(name, check) for name, check, is_vital in self._checks.values() if is_vital or not only_vital]
        found = []
        for name, check in checks:
            try:
                problem = check()
            except Exception as error:  # noqa: BLE001  a check that fails is a finding
                problem = f"{type(error).__name__}: {error}"
            if problem:
                found.append(f"{name}: {problem}")
        return found

    def status(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        problems = self.problems()
        objects = [
            {"role": one.role, "labels": dict(one.labels), "statistics": _plain(one.statistics)}
            for one in self.readings()
            if one.role != "process"
        ]
        return {
            "ok": not problems,
            "name": self.name,
            "role": self.role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 3),
            "problems": problems,
            "objects": objects,
        }


def _plain(statistics: object) -> Any:
    """As JSON has it, which has no number that is not finite: such a one is None."""
    if dataclasses.is_dataclass(statistics) and not isinstance(statistics, type):
        statistics = dataclasses.asdict(statistics)
    if isinstance(statistics, Mapping):
        return {name: _plain(value) for name, value in statistics.items()}
    if isinstance(statistics, list | tuple):
        return [_plain(value) for value in statistics]
    return None if isinstance(statistics, float) and not math.isfinite(statistics) else statistics
