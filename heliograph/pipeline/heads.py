"""``heliograph pipeline heads``: the last number of every stream, for an audit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.output import Output
from heliograph.pipeline import arguments

if TYPE_CHECKING:
    from spark_pipeline.jobs.stream_heads import StreamHead

SUMMARY = "write the last number of every stream to a file, for an audit"
DESCRIPTION = """\
Ask the publishers and caches on a bus for the last number of each stream, and write the numbers to a file for
`heliograph pipeline audit --heads`, which then also finds losses at the end of a stream, and streams of which no event
was recorded.  With --log, write what a log knows about its streams: last numbers, and missing ones.  Needs no Spark.
"""
EXAMPLES = """\
  heliograph pipeline heads --bus zmq://127.0.0.1:8866 --out heads.json
  heliograph pipeline heads --log sqlite:///var/log.db --out heads.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("the source").add_mutually_exclusive_group(required=True)
    options.add_bus(source, "the bus")
    source.add_argument("--log", metavar="URL", help="a durable log, as in sqlite:///dir/log.db")
    parser.add_argument("--out", metavar="FILE", required=True, help="the file; replaced when it exists")
    arguments.add_topics(parser)
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=options.seconds,
        default=10.0,
        help="how long to wait for the bus (default: 10s)",
    )
    options.add_config_file(parser, "read [log] from FILE")
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises WaitTimeout when no process on the bus answers, and what opening the bus or the log raises."""
    from pubsub_api.core.topics import FilterSet
    from spark_pipeline.jobs import stream_heads as heads

    arguments.require_writable(args.out)
    filters = FilterSet(args.topics)
    found = [head for head in (_of_log(args) if args.log else _of_bus(args)) if filters.match(head.topic)]
    heads.write(args.out, found)
    output.result({"streams": len(found)}, f"{len(found):,} streams in {args.out}")
    return exits.OK


def _of_log(args: argparse.Namespace) -> list[StreamHead]:
    from spark_pipeline.jobs import stream_heads as heads

    with arguments.opened_log(args, arguments.read_conf(args)) as log:
        return list(heads.of_log(log))


def _of_bus(args: argparse.Namespace) -> list[StreamHead]:
    """A subscriber that joins asks publishers and caches for their heads before it is ready."""
    import pubsub_api
    from spark_pipeline.jobs.stream_heads import StreamHead

    with pubsub_api.open(args.bus) as session, session.subscriber(args.topics, lambda _: None) as subscriber:
        subscriber.wait_ready(timeout_s=args.timeout)
        return [StreamHead(guid.hex(), topic, last) for (guid, topic), last in sorted(subscriber.heads().items())]
