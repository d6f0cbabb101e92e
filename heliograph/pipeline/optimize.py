"""``heliograph pipeline optimize``: many small files of a table become few."""

from __future__ import annotations

import argparse

from heliograph import exits, options
from heliograph.output import Output

SUMMARY = "put small files of a table together"
DESCRIPTION = """\
Every commit of `heliograph pipeline ingest` adds files, and a table of many small ones is slow to read.  Write those of
a day anew, as few larger ones, in one commit.  The rows stay the same; the former files stay until
`heliograph pipeline vacuum`, so older versions can still be read.  Needs no Spark.
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
    parser.add_argument("--dry-run", action="store_true", help="only say how many files would be written anew")
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises PipelineError when there is no table, LakeConflict when another job was faster."""
    from spark_pipeline.lake import LakeTable

    table = LakeTable(args.lake)
    table.check_exists()
    target = args.file_size * _MEGABYTE
    if args.dry_run:
        small = table.small_files(target)
        output.result({"small": small}, f"{small:,} small files would be put together")
        return exits.OK
    removed, added = table.optimize(target)
    output.result({"replaced": removed, "written": added}, f"{removed:,} files were put together as {added:,}")
    return exits.OK
