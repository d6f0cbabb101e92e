"""``--metrics-address``: the HTTP endpoint of commands that run until they are ended."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from heliograph.output import note

if TYPE_CHECKING:
    from durable_log import LogApi
    from pubsub_api.reporting import ProcessReport


def add_metrics_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-address", metavar="[HOST:]PORT",
        help="tell numbers and health over HTTP there: /metrics, /healthz, /readyz, /status (default: not; without a "
             "host on loopback)",
    )  # fmt: skip


@contextlib.contextmanager
def told(args: argparse.Namespace, make_report: Callable[[], ProcessReport]) -> Iterator[None]:
    """Tell the report while the command runs, when ``--metrics-address`` is given.

    Raises InvalidConfig, AddressInUse.
    """
    if args.metrics_address is None:
        yield
        return
    from pubsub_api import reporting

    with reporting.serve(args.metrics_address, make_report()) as endpoint:
        note(f"heliograph {args.command}: metrics at {endpoint.url}/metrics")
        yield


def log_numbers(log: LogApi) -> dict[str, int]:
    """Of a whole log."""
    states, segments = log.state(), log.segments()
    return {
        "events": sum(state.end - state.start for state in states),
        "bytes": sum(state.bytes for state in states),
        "sealed_bytes": sum(segment.bytes for segment in segments),
        "segments": len(segments),
    }


def group_numbers(log: LogApi, name: str, offsets_max: int) -> dict[str, Any]:
    """Of a group, from its records; reads at most so many offsets of each shard."""
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
