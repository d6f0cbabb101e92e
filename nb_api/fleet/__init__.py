"""The fleet: processes store reports in the database, and an observer finds those that are behind, deaf, silent or old.

    from nb_api import fleet

    with fleet.report(nb, cache, name="host-7/agent"):
        ...

`heliograph fleet` and `heliograph top` show it; `FleetObserver` is for programs.
"""

from __future__ import annotations

from nb_api.aio.controller import AsyncController
from nb_api.api import NbApi
from nb_api.cache.local_cache import LocalCache
from nb_api.controller.controller import Controller
from nb_api.db_api import DbApi
from nb_api.fleet.judging import FleetMember, FleetState
from nb_api.fleet.observer import FleetObserver, FleetView
from nb_api.fleet.report import CopyReport, FleetReport
from nb_api.fleet.reporter import FleetReporter, FleetReporterStatistics
from pubsub_api import Session
from pubsub_api.errors import UsageError
from pubsub_api.reporting import ProcessReport

__all__ = [
    "CopyReport",
    "FleetMember",
    "FleetObserver",
    "FleetReport",
    "FleetReporter",
    "FleetReporterStatistics",
    "FleetState",
    "FleetView",
    "report",
]


def report(
    db: NbApi | DbApi,
    *sources: LocalCache | Controller | AsyncController | Session,
    name: str = "",
    role: str = "program",
    program_release: str = "",
    interval_s: float | None = None,
) -> FleetReporter:
    """Begin to report these objects to the fleet, as one member; close the result before them.

    The reports are stored in ``db``, which may be the `NbApi` of the caches.  ``name`` must be the same after a
    restart, and different for each process; by default it is made of host and role.  Does not block: while the database
    cannot be reached, reports fail, are counted and repeated.  Raises UsageError, InvalidObject, LimitReached.
    """
    process = ProcessReport(name=name, role=role)
    for source in sources:
        if isinstance(source, Session):
            process.add_session(source)
        elif isinstance(source, LocalCache):
            process.add("local_cache", source.statistics)
        elif isinstance(source, Controller | AsyncController):
            process.add("controller", source.statistics)
        else:
            raise UsageError(f"a {type(source).__name__} cannot be reported")
    caches = tuple(source for source in sources if isinstance(source, LocalCache))
    return FleetReporter(
        db.db if isinstance(db, NbApi) else db,
        process,
        name=name,
        program_release=program_release,
        interval_s=interval_s,
        caches=caches,
    ).start()
