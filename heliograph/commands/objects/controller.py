"""``heliograph controller``: follow objects as a controller does, and print their changes."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING

import msgspec

from heliograph import exits, options
from heliograph.opening.databases import add_database, object_line, object_record, open_nb
from heliograph.opening.hosts import resolution_hint
from heliograph.output import Output, compact, note
from heliograph.process_report import add_process_report, reporting_process
from pubsub_api.errors import WaitTimeout

if TYPE_CHECKING:
    from nb_api import CacheChange, LocalCache, NbApi
    from pubsub_api.reporting import ProcessReport

DESCRIPTION = """\
Keep a copy of the objects of some tables and topics, and print its changes until --count or --timeout is reached or
Ctrl-C is pressed.

First it prints the existing objects as `created`, then a line `resynced`: the copy is complete.  From then on it
follows the bus ([pubsub] enable_df_pub_sub, or --bus) or, without one, the database's own feed.  A loss on the way is
detected and read again from the database; the changes found so are printed like others, followed by `resynced`.

With --resync-source it reads all objects from snapshot files or from durability services if these prove that they are
complete, and only later changes from the database.

With --count, exit code 1 means that fewer changes came before the time-out; 3 means that the copy was never complete:
the database or the bus could not be reached.
"""
EXAMPLES = """\
  heliograph controller --db sqlite:///tmp/objects.db --tables port --topics 'tenant-7/#'
  heliograph controller --config-file /etc/heliograph/heliograph.conf --json --statistics
  heliograph controller --db sqlite:///tmp/objects.db --resync-source snapshot --snapshot-directory /data/snapshots
"""
_WAIT_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", metavar="TABLE", nargs="+", help="tables to follow (default: all)")
    parser.add_argument(
        "--topics", metavar="FILTER", nargs="+", help="topics to follow, as in 'tenant-7/#' (default: all)"
    )
    parser.add_argument(
        "--resync-source", metavar="NAME",
        help="where a full resync reads the objects: db, snapshot or durability (default: [local_cache] resync_source)",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot-directory",
        metavar="DIR",
        help="the directory of the snapshot (default: [local_cache] snapshot_directory)",
    )
    parser.add_argument("--count", metavar="N", type=options.positive_int, help="end after N changes of objects")
    options.add_timeout(parser)
    parser.add_argument("--statistics", action="store_true", help="print the counters at the end")
    add_process_report(parser)
    add_database(parser)
    options.add_json(parser, 'one JSON object per change, {"created": ...} and so on; counters are {"statistics": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises InvalidTopic, InvalidObject, DbError; WaitTimeout when the copy was not complete before the time-out."""
    from nb_api import LocalCache
    from nb_api.core.checks import TopicSelection
    from pubsub_api.loading import build_driver

    TopicSelection(args.tables, args.topics)  # refuses wrong arguments before anything is connected to
    given = {"resync_source": args.resync_source, "snapshot_directory": args.snapshot_directory}
    cache_options = {name: value for name, value in given.items() if value is not None}
    with (
        open_nb(args, cache_options) as nb,
        LocalCache(nb, tables=args.tables, topics=args.topics) as cache,
        reporting_process(args, lambda: _process_report(nb, cache), (cache,)),
    ):
        try:
            printed, is_complete = _follow(cache, output, args)
            why = "" if is_complete or nb.session is None else resolution_hint(build_driver(nb.conf).listen_addresses())
        finally:
            if args.statistics:
                output.statistics(cache.statistics())
    if not is_complete:
        raise WaitTimeout(f"the copy was not complete within {args.timeout:g} s{why}")
    if args.count is not None and printed < args.count:
        note(f"heliograph controller: {printed} of {args.count} changes came within {args.timeout} s")
        return exits.FAILED
    return exits.OK


def _process_report(nb: NbApi, cache: LocalCache) -> ProcessReport:
    from pubsub_api.reporting import ProcessReport

    report = ProcessReport(role="controller")
    report.add("nb", nb.statistics)
    report.add("local_cache", cache.statistics)
    if nb.session is not None:
        report.add_session(nb.session, name="bus")
    report.add_check("copy", lambda: "" if cache.statistics().is_synced else "it is not complete")
    return report


def _follow(cache: LocalCache, output: Output, args: argparse.Namespace) -> tuple[int, bool]:
    """Print changes until the end.  Returns how many changes of objects were printed, and whether the copy was ever
    complete."""
    from nb_api import Resynced

    deadline = math.inf if args.timeout is None else time.monotonic() + args.timeout
    printed, is_complete = 0, False
    while (left_s := deadline - time.monotonic()) > 0:
        for change in cache.changes(timeout_s=min(left_s, _WAIT_S)):
            _print(output, change)
            is_complete |= isinstance(change, Resynced)
            printed += not isinstance(change, Resynced)
            if printed == args.count:
                return printed, True
            if time.monotonic() > deadline:
                break
        output.flush()
    return printed, is_complete


def _print(output: Output, change: CacheChange) -> None:
    from nb_api import Deleted, Resynced

    kind = type(change).__name__.lower()
    if isinstance(change, Resynced):
        counts = {"created": change.created, "updated": change.updated, "deleted": change.deleted}
        remark = "" if change.is_told else "; single changes were left out"
        output.result(
            {kind: msgspec.structs.asdict(change)},
            f"{kind} by {change.kind} ({change.reason}) at {change.revision}: {compact(counts)}{remark}",
        )
        return
    shown = change.object
    if isinstance(change, Deleted):  # the last value, with the version of the deletion
        shown = msgspec.structs.replace(shown, version=change.version)
    output.result({kind: object_record(shown)}, f"{kind} {object_line(shown)}")
