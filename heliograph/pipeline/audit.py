"""``heliograph pipeline audit``: find events that were lost, doubled or out of order."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

import msgspec

from heliograph import exits, options
from heliograph.output import Output, note
from heliograph.pipeline import arguments

SUMMARY = "find events that were lost, doubled or out of order, and how long events took"
DESCRIPTION = """\
Check every recorded stream: which numbers are missing, which came twice, which came late, and how long events took from
publishing to recording.  Events that a log has never received are lost.  Numbers that were skipped on purpose, and
events that retention or compaction has removed, are counted apart, as not kept.  With --heads, a file of `heliograph
pipeline heads`, the audit also finds losses at the end of a stream, and streams of which no event arrived.

The exit code is 1 when a problem was found.
"""
EXAMPLES = """\
  heliograph pipeline audit --log sqlite:///var/log.db
  heliograph pipeline audit --lake /data/events --topics 'tenant-7/#' --html audit.html
  heliograph pipeline heads --bus zmq://127.0.0.1:8866 --out heads.json
  heliograph pipeline audit --log sqlite:///var/log.db --heads heads.json --json
"""
_SHOWN_MAX = 20

if TYPE_CHECKING:
    from oslo_config import cfg

    from spark_pipeline.jobs.stream_heads import Expected, Stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_source(parser)
    parser.add_argument(
        "--heads", metavar="FILE",
        help='the heads of streams: JSON lines {"publisher": HEX, "topic": ..., "first": 1, "last": N}, as '
        "`heliograph pipeline heads` writes them",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    arguments.add_spark(parser)
    options.add_json(parser, "the whole report as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError for heads that cannot be read."""
    conf = arguments.read_conf(args)
    arguments.check_source(args, conf)
    arguments.require_writable(args.html)
    with arguments.spark_session(args, conf, "audit") as spark:
        from spark_pipeline.jobs.report import audit_report, to_html

        events = arguments.read_events(spark, args, conf)
        report = audit_report(events, _expected(args, conf), source=_source(args, conf))
    if args.html:
        pathlib.Path(args.html).write_text(to_html(report, title="Audit"))
        note(f"written: {args.html}")
    if output.is_json:
        output.record(msgspec.to_builtins(report))
        return exits.OK if report.is_clean else exits.FAILED
    rows = [
        (one.publisher[:8], one.topic, one.events, one.lost, one.not_kept, one.duplicated, one.reordered)
        for one in report.streams[:_SHOWN_MAX]
    ]
    output.table(
        f"{len(report.streams):,} streams, {report.total('events'):,} events: {report.total('lost'):,} lost, "
        f"{report.total('duplicated'):,} doubled, {report.total('reordered'):,} late, "
        f"{report.undecodable:,} unreadable, {report.total('not_kept'):,} not kept",
        ("publisher", "topic", "events", "lost", "not kept", "doubled", "late"),
        rows,
    )
    for one in report.ranges[:_SHOWN_MAX]:
        output.line(f"{one.kind}: publisher {one.publisher[:8]}, topic {one.topic}, numbers {one.first} to {one.last}")
    for what, found in (("streams", report.streams), ("ranges", report.ranges)):
        if len(found) > _SHOWN_MAX:
            output.line(f"only the first {_SHOWN_MAX} of {len(found):,} {what} are shown: see --json and --html")
    delays = ", ".join(f"{name.removesuffix('_ms')} {value:,.1f} ms" for name, value in report.delays_ms.items())
    output.line(f"delay from publishing to recording: {delays or 'no events'}")
    return exits.OK if report.is_clean else exits.FAILED


def _expected(args: argparse.Namespace, conf: cfg.ConfigOpts) -> dict[Stream, Expected] | None:
    """What the log, the logs of the table, and ``--heads`` know about the streams; None when there is none of them."""
    from spark_pipeline.jobs import stream_heads as heads
    from spark_pipeline.lake import LakeTable

    if args.lake:
        sources = heads.beside(LakeTable(args.lake).place)
    else:
        with arguments.opened_log(args, conf) as log:
            sources = [list(heads.of_log(log))]
    if args.heads:
        sources.append(heads.read(args.heads))
    return heads.expect(sources, args.topics) if sources else None


def _source(args: argparse.Namespace, conf: cfg.ConfigOpts) -> str:
    from pubsub_api.runtime.plugins import without_password

    url = "" if args.lake else without_password(arguments.log_url(args, conf).partition("?")[0])
    what = f"table {args.lake}" if args.lake else f"log {url}"
    return what if args.topics == ["#"] else f"{what}, topics {' '.join(args.topics)}"
