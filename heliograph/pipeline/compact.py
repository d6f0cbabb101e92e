"""``heliograph pipeline compact``: the newest version of every object, as a snapshot."""

from __future__ import annotations

import argparse
import time

import msgspec

from heliograph import exits, options
from heliograph.output import Output
from heliograph.pipeline import arguments

SUMMARY = "write the newest version of every object as a snapshot"
DESCRIPTION = """\
Keep the newest change of each object, by version, then time, publisher and number; drop deleted objects.  The result is
a directory of Parquet files with a manifest that names the offsets of the log up to which it is complete: load it and
go on from there.
"""
EXAMPLES = """\
  heliograph pipeline compact --log sqlite:///var/log.db --out /data/snapshot-1
  heliograph pipeline compact --lake /data/events --out /data/snapshot-2 --keep-tombstones 86400
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_source(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="directory of the snapshot; must not exist")
    parser.add_argument(
        "--keep-tombstones", metavar="TIME", type=options.seconds, default=0.0,
        help="keep deletes that are younger than this as rows of their own (default: 0, none)",
    )  # fmt: skip
    arguments.add_spark(parser)
    options.add_json(parser, "the manifest as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError when the directory exists."""
    arguments.require_new_directory(args.out)
    conf = arguments.read_conf(args)
    arguments.check_source(args, conf)
    with arguments.spark_session(args, conf, "compact") as spark:
        from spark_pipeline.jobs.snapshot import write_snapshot

        events = arguments.read_events(spark, args, conf)
        tombstones_from_ns = time.time_ns() - int(args.keep_tombstones * 1e9) if args.keep_tombstones else None
        identity = ""
        if not args.lake:
            with arguments.opened_log(args, conf) as log:
                identity = log.identity
        manifest = write_snapshot(events, args.out, tombstones_from_ns=tombstones_from_ns, log=identity)
    output.result(
        msgspec.to_builtins(manifest),
        f"{manifest.objects:,} objects in {args.out}, newest version {manifest.version:,}",
    )
    return exits.OK
