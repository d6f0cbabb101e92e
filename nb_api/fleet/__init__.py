"""The fleet: processes tell in the database how they are, and an observer sees which are behind, deaf, silent or old.

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
    """Begin to tell the fleet of these objects, as one member; close what is returned before them.

    The report goes into ``db``, which may be the `NbApi` of the caches.  ``name`` is the same each time the program
    starts, and another one for each process; by default it is made of host and role.  Returns at once: a database
    that cannot be reached is tried again and counted.  Raises UsageError, InvalidObject, LimitReached.
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
