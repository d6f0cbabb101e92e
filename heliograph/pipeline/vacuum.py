"""``heliograph pipeline vacuum``: remove unused files of a table."""

from __future__ import annotations

import argparse
import math

from heliograph import exits, options
from heliograph.output import Output
from pubsub_api.errors import UsageError

SUMMARY = "remove files of a table that only old versions use, or that killed jobs left"
DESCRIPTION = """\
Remove files that no version younger than --older-than uses, and files that killed jobs left.  Older versions can then
no longer be read.  The files of a running job belong to no version yet: choose a time that is longer than any job
takes.  Needs no Spark.
"""
EXAMPLES = """\
  heliograph pipeline vacuum --lake /data/events --dry-run
  heliograph pipeline vacuum --lake s3://events/lake --older-than 30d
"""
_HOUR_S = 3600.0
_WEEK_S = 7 * 24 * _HOUR_S


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lake", metavar="DIR", required=True, help="the table")
    parser.add_argument(
        "--older-than", metavar="TIME", type=options.seconds, default=_WEEK_S,
        help="keep files that were in use since then; at least 1h, in whole hours (default: 7d)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only list the files")
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises PipelineError when there is no table, UsageError for a time that is too short."""
    from spark_pipeline.lake import LakeTable

    if args.older_than < _HOUR_S:
        raise UsageError("--older-than must be at least an hour: files of a running job belong to no version yet")
    table = LakeTable(args.lake)
    table.check_exists()
    found = table.vacuum(retention_hours=math.ceil(args.older_than / _HOUR_S), is_dry=args.dry_run)
    if not output.is_json:
        for name in found if args.dry_run else ():
            output.line(name)
    outcome = "would be removed" if args.dry_run else "removed"
    output.result({"files": found, "removed": not args.dry_run}, f"{len(found):,} files {outcome}")
    return exits.OK
