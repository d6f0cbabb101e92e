"""``heliograph cache``: a reliability cache that stands alone."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.commands import SUMMARIES
from heliograph.output import Output, compact
from pubsub_api.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from pubsub_api.cache_node import CacheNode, FrameStore

DESCRIPTION = """\
Listen to publishers, keep their frames, and answer subscribers that miss some.

Run one near subscribers, so that repair does not travel to the publisher, or for publishers that have no memory to
spare (with_cache = false).  How much it keeps is set by [pubsub] history, cache_bytes_max and cache_age_max.

Where a broker or a router stands between, --url is that of the broker and nothing else is needed.  With zmq and other
bind-based drivers, --url is where this cache listens, subscribers add it to the publishers they listen to, and
--listen names the publishers.

With --log it also answers from a durable log, for ranges far older than its memory; `heliograph log record` fills one.

It runs until it is interrupted, which is its normal end: the exit code is 0.
"""
EXAMPLES = """\
  heliograph cache --topics '#' --url redis://127.0.0.1:6379/0
  heliograph cache --topics 'tenant-7/#' --url zmq://127.0.0.1:8870 --listen tcp://127.0.0.1:8866
  heliograph cache --topics '#' --url redis://127.0.0.1:6379/0 --log sqlite:///var/lib/heliograph/log.db
"""


def register(subparsers: options.Subparsers[argparse.ArgumentParser]) -> None:
    parser = options.add_command(
        subparsers, "cache", summary=SUMMARIES["cache"], description=DESCRIPTION, examples=EXAMPLES
    )
    parser.add_argument(
        "--topics", metavar="FILTER", nargs="+", required=True, help="topics to keep, as in 'tenant-7/#'"
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", action="append", default=[],
        help="a publisher to listen to; may be repeated (default: those of the configuration)",
    )  # fmt: skip
    parser.add_argument("--log", metavar="URL", help="a durable log to look into for what is not in memory")
    parser.add_argument("--name", default="", help="the cache's name in logs (default: host and program)")
    parser.add_argument("--timeout", metavar="S", type=options.seconds, help="end after S seconds")
    parser.add_argument(
        "--report", metavar="S", type=options.seconds, default=60.0,
        help="print the counters every S seconds, 0 for never (default: 60)",
    )  # fmt: skip
    options.add_session(parser)
    options.add_json(parser, 'JSON lines: {"address": ...} when it serves, then the counters')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Raises AddressInUse, NotSupported, UsageError."""
    output = Output(is_json=args.json)
    with options.open_session(args) as session:
        if not session.capabilities.queries:
            raise NotSupported("this driver has no queries, so nobody could ask the cache")
        if session.capabilities.bind_based and args.url and not args.listen:
            raise UsageError(
                "on a bind-based driver --url is the cache's own address: name the publishers with --listen"
            )
        with (
            _store(args.log) as store,
            session.cache(args.topics, name=args.name, addresses=args.listen or None, store=store) as cache,
        ):
            if output.is_json:
                output.record({"address": cache.address})
            else:
                output.line(f"caching {', '.join(args.topics)} at {cache.address}; Ctrl-C ends it")
            output.flush()
            try:
                _report(output, cache, args)
            except KeyboardInterrupt:
                _print(output, cache)
    return exits.OK


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[FrameStore | None]:
    """What is behind the cache, if anything.  Raises what opening a log raises."""
    if url is None:
        yield None
        return
    import durable_log
    from durable_log.recording.log_cache import LogStore

    with contextlib.closing(durable_log.open(url)) as log:
        yield LogStore(log)


def _report(output: Output, cache: CacheNode, args: argparse.Namespace) -> None:
    """Print the counters at every interval until the time is over or a signal comes."""
    never = threading.Event()
    left_s = threading.TIMEOUT_MAX if args.timeout is None else args.timeout
    while left_s > 0:
        pause_s = min(left_s, args.report or threading.TIMEOUT_MAX)
        never.wait(pause_s)
        left_s -= pause_s
        _print(output, cache)


def _print(output: Output, cache: CacheNode) -> None:
    if output.is_json:
        output.record(cache.statistics())
    else:
        output.line(", ".join(f"{name} {compact(value)}" for name, value in vars(cache.statistics()).items()))
    output.flush()
