"""``heliograph pipeline ingest``: append the events of a log to a table of the lake."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.opening.logs import add_log
from heliograph.output import Output, note
from heliograph.pipeline import arguments
from heliograph.terminal.progress import Progress

if TYPE_CHECKING:
    from spark_pipeline.lake import LakeTable
    from spark_pipeline.types import SparkSession

SUMMARY = "append new events of the log to a table of the lake"
DESCRIPTION = """\
Append the events of a durable log to a Delta table, in commits of bounded size.  Every commit contains the offset that
it has reached in each shard, so the job may be killed at any moment and started again: no event is ingested twice or
left out.  Each commit is a version that can be read later.

It ends when every event that was in the log at its start is in the table; with --every it starts again and again.
"""
EXAMPLES = """\
  heliograph pipeline ingest --log sqlite:///var/log.db --lake /data/events
  heliograph pipeline ingest --lake /data/events --every 60
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_log(parser, "the durable log")
    parser.add_argument("--lake", metavar="DIR", required=True, help="the table; created when there is none")
    parser.add_argument("--every", metavar="TIME", type=options.seconds, help="interval of repetitions, until Ctrl-C")
    parser.add_argument(
        "--commit-events", metavar="N", type=options.positive_int, default=5_000_000,
        help="most events of one commit (default: 5,000,000)",
    )  # fmt: skip
    arguments.add_spark(parser)
    options.add_json(parser, "JSON lines: one per commit")


def run(args: argparse.Namespace, output: Output) -> int:
    from spark_pipeline.lake import LakeTable

    conf = arguments.read_conf(args)
    table = LakeTable(args.lake)
    arguments.check_log(args, conf)
    table.current()  # raises for a wrong place now, because starting Spark takes seconds
    with arguments.spark_session(args, conf, "ingest") as spark:
        while True:
            began = time.monotonic()
            _take_in(output, spark, arguments.log_url(args, conf), table, args.commit_events)
            if args.every is None:
                return exits.OK
            time.sleep(max(0.0, args.every - (time.monotonic() - began)))


def _take_in(output: Output, spark: SparkSession, url: str, table: LakeTable, commit_events: int) -> None:
    from spark_pipeline.jobs.ingest import count_waiting, ingest

    done = 0
    with Progress("ingest", count_waiting(url, table)) as progress:
        progress.update(0)
        for taken in ingest(spark, url, table, events_max=commit_events):
            done += taken.events
            progress.update(done)
            if taken.lost:
                note(f"retention dropped {taken.lost:,} events before they were ingested")
            if output.is_json:
                output.record(taken)
    if not output.is_json:
        output.line(f"{done:,} events ingested")
    output.flush()
