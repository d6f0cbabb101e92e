"""How long-running commands report their state: ``--metrics-address`` over HTTP, ``--fleet`` in a database."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from heliograph.opening.targets import VARIABLES
from heliograph.output import note

if TYPE_CHECKING:
    from durable_log import LogApi
    from nb_api import LocalCache
    from pubsub_api.reporting import ProcessReport


def add_process_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-address", metavar="[HOST:]PORT",
        help="serve metrics and health over HTTP there: /metrics, /healthz, /readyz, /status (default: not served; "
             "without HOST on loopback)",
    )  # fmt: skip
    parser.add_argument(
        "--fleet", metavar="URL", nargs="?", const="",
        help="report the state of the process to this database, for `heliograph fleet` (default: not reported; "
             "without URL the database that --db, HELIOGRAPH_DB or [db] url names)",
    )  # fmt: skip
    parser.add_argument(
        "--fleet-name", metavar="NAME", default="", help="name of the process in the fleet (default: host/command)"
    )


@contextlib.contextmanager
def reporting_process(
    args: argparse.Namespace, make_report: Callable[[], ProcessReport], caches: tuple[LocalCache, ...] = ()
) -> Iterator[None]:
    """Inside the ``with``, publish the report as ``--metrics-address`` and ``--fleet`` say; without them do nothing.

    The report has the digests of the copies that ``caches`` hold.  Raises InvalidConfig, AddressInUse, DbNotFound.
    """
    if args.metrics_address is None and args.fleet is None:
        yield
        return
    report = make_report()
    with contextlib.ExitStack() as stack:
        if args.fleet is not None:
            stack.enter_context(_reporting_to_fleet(args, report, caches))
        if args.metrics_address is not None:
            from pubsub_api import reporting

            endpoint = stack.enter_context(reporting.serve(args.metrics_address, report))
            note(f"heliograph {args.command}: metrics at {endpoint.url}/metrics")
        yield


@contextlib.contextmanager
def _reporting_to_fleet(
    args: argparse.Namespace, report: ProcessReport, caches: tuple[LocalCache, ...]
) -> Iterator[None]:
    """Retries while the database cannot be reached.  Raises DbNotFound for one that does not exist."""
    from nb_api.errors import DbUnavailable
    from nb_api.fleet.reporter import FleetReporter
    from nb_api.late_db import LateDb
    from nb_api.loading import build_db, check_exists
    from pubsub_api.config import new_conf

    url = args.fleet or getattr(args, "db", None) or os.environ.get(VARIABLES["db"]) or None
    with contextlib.closing(LateDb(build_db(url, new_conf(args.config_file), with_outbox=False))) as db:
        with contextlib.suppress(DbUnavailable):
            check_exists(db)
        with FleetReporter(db, report, name=args.fleet_name, caches=caches) as reporter:
            report.add("fleet", reporter.statistics, name=reporter.name)
            yield


def log_numbers(log: LogApi) -> dict[str, int]:
    """The counters of a whole log for a report."""
    states, segments = log.state(), log.segments()
    return {
        "events": sum(state.end - state.start for state in states),
        "bytes": sum(state.bytes for state in states),
        "sealed_bytes": sum(segment.bytes for segment in segments),
        "segments": len(segments),
    }


def group_numbers(log: LogApi, name: str, offsets_max: int) -> dict[str, Any]:
    """The counters of a group for a report, from its records; reads at most ``offsets_max`` offsets of each shard."""
    from shared_subscriptions import groups

    view = groups.show(log, name, offsets_max=offsets_max)
    oldest = [one.oldest_s for one in view.streams if one.oldest_s is not None]
    return {
        "lag": view.lag,
        "is_lag_exact": view.is_lag_exact,
        "oldest_seconds": max(oldest, default=0.0),
        "members": len(view.status.members) if view.status else 0,
        "is_led": bool(view.leader),
        "missing": view.missing,
        "expired": view.expired,
    }
