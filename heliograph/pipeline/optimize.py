"""``heliograph pipeline optimize``: join small files of a table."""

from __future__ import annotations

import argparse

from heliograph import exits, options
from heliograph.output import Output

SUMMARY = "join small files of a table"
DESCRIPTION = """\
Every commit of `heliograph pipeline ingest` adds files, and a table of many small files is slow to read.  This job
writes the rows of small files of one day to a few larger files, in one commit.  The rows stay the same.  The old files
stay until `heliograph pipeline vacuum`, so older versions can still be read.  Needs no Spark.
"""
EXAMPLES = """\
  heliograph pipeline optimize --lake /data/events --dry-run
  heliograph pipeline optimize --lake s3://events/lake --file-size 256
"""
_MEGABYTE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lake", metavar="DIR", required=True, help="the table")
    parser.add_argument(
        "--file-size", metavar="MB", type=options.positive_int, default=128, help="size of a file (default: 128)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print how many files would be joined")
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises PipelineError when there is no table, LakeConflict when another job was faster."""
    from spark_pipeline.lake import LakeTable

    table = LakeTable(args.lake)
    table.check_exists()
    target = args.file_size * _MEGABYTE
    if args.dry_run:
        small = table.small_files(target)
        output.result({"small": small}, f"{small:,} small files would be joined")
        return exits.OK
    removed, added = table.optimize(target)
    output.result({"replaced": removed, "written": added}, f"{removed:,} files were joined into {added:,}")
    return exits.OK
