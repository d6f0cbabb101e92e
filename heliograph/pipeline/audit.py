"""``heliograph pipeline audit``: what was lost, doubled or out of order."""

from __future__ import annotations

import argparse
import pathlib

import msgspec

from heliograph import exits, options
from heliograph.output import Output, note
from heliograph.pipeline import common

SUMMARY = "find what was lost, doubled or out of order, and how long events took"
DESCRIPTION = """\
Look at every stream that was recorded: which numbers are missing, which came twice, which came late, and how long
events took from publishing to recording.  --heads compares with what publishers numbered, so that losses at the end
of a stream, and streams of which nothing arrived, are found too.

The exit code is 1 when anything is wrong.
"""
EXAMPLES = """\
  heliograph pipeline audit --log sqlite:///var/log.db
  heliograph pipeline audit --lake /data/events --topics 'tenant-7/#' --html audit.html
  heliograph pipeline audit --log sqlite:///var/log.db --heads heads.json --json
"""
_SHOWN_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_source(parser)
    parser.add_argument(
        "--heads", metavar="FILE",
        help='what publishers numbered: JSON lines {"publisher": HEX, "topic": ..., "first": 1, "last": N}',
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    common.add_spark(parser)
    options.add_json(parser, "the whole report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Raises UsageError for heads that cannot be read."""
    conf = common.read_conf(args)
    output = Output(is_json=args.json)
    common.check_source(args, conf)
    with common.spark_session(args, conf, "audit") as spark:
        from spark_pipeline.report import audit_report, read_heads, to_html

        heads = read_heads(spark, args.heads) if args.heads else None
        report = audit_report(common.read_events(spark, args, conf), heads)
    if args.html:
        pathlib.Path(args.html).write_text(to_html(report, title="Audit of " + (args.lake or "the log")))
        note(f"written: {args.html}")
    if output.is_json:
        output.record(msgspec.to_builtins(report))
        return exits.OK if report.is_clean else exits.FAILED
    rows = [
        (one.publisher[:8], one.topic, one.events, one.lost, one.duplicated, one.reordered)
        for one in report.streams[:_SHOWN_MAX]
    ]
    output.table(
        f"{len(report.streams):,} streams, {report.total('events'):,} events: {report.total('lost'):,} lost, "
        f"{report.total('duplicated'):,} doubled, {report.total('reordered'):,} late, "
        f"{report.undecodable:,} unreadable",
        ("publisher", "topic", "events", "lost", "doubled", "late"),
        rows,
    )
    for one in report.ranges[:_SHOWN_MAX]:
        output.line(f"{one.kind}: publisher {one.publisher[:8]}, topic {one.topic}, numbers {one.first} to {one.last}")
    delays = ", ".join(f"{name.removesuffix('_ms')} {value:,.1f} ms" for name, value in report.delays_ms.items())
    output.line(f"delay from publishing to recording: {delays or 'no events'}")
    return exits.OK if report.is_clean else exits.FAILED
