"""``heliograph verify``: prove that a copy which follows the bus is equal to the database."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from heliograph import exits, options, units
from heliograph.opening.databases import add_database, object_record, open_nb
from heliograph.output import Output, compact, note
from pubsub_api.errors import WaitTimeout

if TYPE_CHECKING:
    from nb_api import DbObject, LocalCache, ObjectDifference, Verification

DESCRIPTION = """\
Compare a copy with the database, and print what differs.

The command works like a controller: it reads the objects of some tables and topics, and follows their changes on the
bus ([pubsub] enable_df_pub_sub, or --bus) or, without one, in the database's own feed, for as long as --follow says.
Then it compares its copy with the database as of one revision, object by object, values included.  Writers go on
meanwhile.  This checks the whole way from writers to caches; a longer --follow finds rarer faults.

Controllers verify their own copies with LocalCache.verify(), or regularly with LocalCache(verify_interval_s=...).  The
printed digests are those of LocalCache.digests(): equal copies have equal digests.

exit code 0: equal.  1: something differs.  3: the database or the bus could not be reached, or the copy was behind the
database until the time-out.
"""
EXAMPLES = """\
  heliograph verify --db sqlite:///tmp/objects.db --tables port --topics 'tenant-7/#'
  heliograph verify --config-file /etc/heliograph/heliograph.conf --follow 10m --timeout 15m
  heliograph verify --db sqlite:///tmp/objects.db --follow 0s --json
"""
_AGAIN_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", metavar="TABLE", nargs="+", help="tables to compare (default: all)")
    parser.add_argument(
        "--topics", metavar="FILTER", nargs="+", help="topics to compare, as in 'tenant-7/#' (default: all)"
    )
    parser.add_argument(
        "--follow", metavar="TIME", type=options.seconds, default=5.0,
        help="follow changes for this long before comparing (default: 5s)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="TIME", type=options.seconds, default=300.0,
        help=f"give up after this long, as in {units.DURATIONS} (default: 5m)",
    )  # fmt: skip
    add_database(parser)
    options.add_json(parser, 'one JSON object per difference, {"difference": ...}, at the end {"verification": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises InvalidTopic, InvalidObject, WaitTimeout, DbError."""
    from nb_api import LocalCache
    from nb_api.core.checks import TopicSelection

    TopicSelection(args.tables, args.topics)  # refuses wrong arguments before anything is connected to
    deadline = time.monotonic() + args.timeout
    with open_nb(args) as nb, LocalCache(nb, tables=args.tables, topics=args.topics) as cache:
        cache.wait_synced(timeout_s=args.timeout)
        if args.follow:
            note(f"heliograph verify: following {'the bus' if nb.session else 'the feed'} for {args.follow:g} s")
            time.sleep(min(args.follow, max(deadline - time.monotonic(), 0.0)))
        found = _verify(cache, deadline)
    compared = {proof.table for proof in found.tables}
    for table in sorted(set(args.tables or ()) - compared):  # a mistyped table would count as equal
        note(f"heliograph verify: no object of a table {table!r} was compared")
    for difference in found.differences:
        _print_difference(output, difference)
    _print_tables(output, found)
    return exits.OK if found.is_equal else exits.FAILED


def _verify(cache: LocalCache, deadline: float) -> Verification:
    """Verify as soon as the copy is not behind.  Blocks until the deadline at most; raises WaitTimeout."""
    from nb_api.errors import CopyUnsettled

    while True:
        left_s = deadline - time.monotonic()
        try:
            return cache.verify(timeout_s=max(left_s, 0.0), is_thorough=True)
        except CopyUnsettled as error:
            if left_s <= _AGAIN_S:
                raise WaitTimeout(f"the copy was behind the database until the time-out: {error}") from error
        time.sleep(_AGAIN_S)


def _print_difference(output: Output, difference: ObjectDifference) -> None:
    def shown(found: DbObject | None) -> str:
        return "nothing" if found is None else f"v{found.version} {found.topic} {compact(found.value)}"

    record: dict[str, Any] = {
        "table": difference.table,
        "key": difference.key,
        "kind": difference.kind,
        "copy": difference.held and object_record(difference.held),
        "database": difference.stored and object_record(difference.stored),
    }
    name = f"{difference.table}/{difference.key}"
    output.result(
        {"difference": record},
        f"{difference.kind} {name}: the copy had {shown(difference.held)}; the database has {shown(difference.stored)}",
    )


def _print_tables(output: Output, found: Verification) -> None:
    verdict = "equal" if found.is_equal else f"{len(found.differences)} objects differ"
    if output.is_json:
        output.record(
            {
                "verification": {
                    "is_equal": found.is_equal,
                    "revision": found.revision,
                    "differences": len(found.differences),
                    "objects": found.objects,
                    "values": found.values,
                    "late": found.late,
                    "tables": {
                        proof.table: {
                            "objects": proof.stored.objects,
                            "database": str(proof.stored),
                            "copy": str(proof.held),
                        }
                        for proof in found.tables
                    },
                }
            }
        )
        return
    rows = [(proof.table, proof.held.objects, proof.stored.objects, str(proof.stored)) for proof in found.tables]
    output.table("", ("table", "objects in the copy", "in the database", "digest"), rows)
    output.line(f"{verdict}: {found.objects} objects as of revision {found.revision}")
