"""``heliograph cache``: a stand-alone cache from which subscribers repair losses."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.output import Output
from heliograph.process_report import add_process_report, reporting_process
from heliograph.terminal.long_running import add_counters, print_counters_until_end
from pubsub_api.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from pubsub_api import Session
    from pubsub_api.cache_node import FrameStore
    from pubsub_api.reporting import ProcessReport

DESCRIPTION = """\
Listen to publishers, keep their frames, and answer subscribers that miss some.

Run one near subscribers, so that repair does not travel to the publisher, or for publishers that have no memory to
spare (with_cache = false).  [pubsub] history, cache_bytes_max and cache_age_max say how much it keeps.

With a broker or a router, --bus names it and nothing else is needed.  With zmq and other bind-based drivers, --bus is
where this cache listens, --listen names the publishers, and subscribers list this cache beside the publishers.

With --log it also answers from a durable log, for frames older than its memory; `heliograph log record` fills one.

It runs until it is interrupted, which is its normal end: the exit code is 0.
"""
EXAMPLES = """\
  heliograph cache --topics '#' --bus redis://127.0.0.1:6379/0
  heliograph cache --topics 'tenant-7/#' --bus zmq://127.0.0.1:8870 --listen tcp://127.0.0.1:8866
  heliograph cache --topics '#' --bus redis://127.0.0.1:6379/0 --log sqlite:///var/lib/heliograph/log.db
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topics", metavar="FILTER", nargs="+", required=True, help="topics to keep, as in 'tenant-7/#'"
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", action="append", default=[],
        help="a publisher to listen to; may be repeated (default: those of the configuration)",
    )  # fmt: skip
    parser.add_argument(
        "--log", dest="store", metavar="URL", help="a durable log with the frames that are no longer in memory"
    )
    parser.add_argument("--name", default="", help="the cache's name in logs (default: host and program)")
    add_counters(parser)
    add_process_report(parser)
    options.add_session(parser)
    options.add_json(parser, 'JSON lines: {"address": ...} when it serves, then the counters')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises AddressInUse, NotSupported, UsageError."""
    with options.open_session(args) as session:
        if not session.capabilities.queries:
            raise NotSupported("this driver has no queries, so subscribers could not ask the cache")
        if session.capabilities.bind_based and args.bus and not args.listen:
            raise UsageError(
                "on a bind-based driver --bus is the cache's own address: name the publishers with --listen"
            )
        with (
            _store(args.store) as store,
            session.cache(args.topics, name=args.name, addresses=args.listen or None, store=store) as cache,
            reporting_process(args, lambda: _process_report(session)),
        ):
            topics = ", ".join(args.topics)
            output.result({"address": cache.address}, f"caching {topics} at {cache.address}; Ctrl-C ends it")
            output.flush()
            print_counters_until_end(output, args, lambda: vars(cache.statistics()))
    return exits.OK


def _process_report(session: Session) -> ProcessReport:
    from pubsub_api.reporting import ProcessReport

    report = ProcessReport(role="cache")
    report.add_session(session, name="cache")
    return report


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[FrameStore | None]:
    """The log behind the cache, if one is named.  Raises what `durable_log.open` raises."""
    if url is None:
        yield None
        return
    import durable_log
    from durable_log.recording.log_cache import LogStore

    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        yield LogStore(log)
