"""``heliograph pipeline merge``: join two data sets that diverged."""

from __future__ import annotations

import argparse
import time

from heliograph import exits, options
from heliograph.output import Output
from heliograph.pipeline import arguments

POLICIES = ("IGNORE", "DELETE", "MERGE", "REPLACE", "CATCHUP")
SUMMARY = "join two data sets that diverged, by a merge policy"
DESCRIPTION = """\
Apply a policy of the durability service to two sets of events, each a directory of Parquet files with the columns of
an event (a snapshot, a table of the lake, sealed segments).  When the digests of both sets are equal, nothing is
written: the local set is the result.
"""
EXAMPLES = """\
  heliograph pipeline merge MERGE --local /data/east --remote /data/west --out /data/both
  heliograph pipeline merge REPLACE --local /data/old --remote /data/new --out /data/result --before 2026-05-01T00:00:00
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="POLICY", type=str.upper, choices=POLICIES, help=", ".join(POLICIES))
    parser.add_argument("--local", metavar="DIR", required=True, help="the local set")
    parser.add_argument("--remote", metavar="DIR", required=True, help="the set of the other side")
    parser.add_argument("--out", metavar="DIR", required=True, help="directory of the result; must not exist")
    parser.add_argument(
        "--before", metavar="TIME", type=arguments.moment, default=None,
        help="never change samples of the local set that are newer than this (default: now)",
    )  # fmt: skip
    parser.add_argument(
        "--depth", metavar="N", type=options.positive_int, default=1, help="samples kept per object (default: 1)"
    )
    arguments.add_spark(parser)
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError when the directory exists, SchemaMismatch."""
    arguments.require_new_directory(args.out)
    for given in (args.local, args.remote):
        arguments.directory_at(given, "a set of events")
    conf = arguments.read_conf(args)
    with arguments.spark_session(args, conf, "merge") as spark:
        from spark_pipeline.jobs.merge import SnapshotMergePolicy, merge_if_different
        from spark_pipeline.jobs.snapshot import read_rows, write_rows

        merged, has_moved = merge_if_different(
            SnapshotMergePolicy[args.policy],
            read_rows(spark, args.local),
            read_rows(spark, args.remote),
            t=time.time_ns() if args.before is None else args.before,
            depth=args.depth,
        )
        if has_moved:
            write_rows(merged, args.out)
    what = f"written to {args.out}" if has_moved else f"no change, the result is {args.local}"
    output.result(
        {"policy": args.policy, "written": has_moved, "result": args.out if has_moved else args.local},
        f"{args.policy}: {what}",
    )
    return exits.OK
