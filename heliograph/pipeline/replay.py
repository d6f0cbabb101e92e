"""``heliograph pipeline replay``: publish recorded events again."""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import TYPE_CHECKING

from heliograph import exits, options
from heliograph.output import Output
from heliograph.pipeline import arguments
from heliograph.terminal.progress import Progress
from pubsub_api.runtime.files import replace_private

if TYPE_CHECKING:
    from pubsub_api import Publisher
    from spark_pipeline.jobs.replay import ReplayPosition
    from spark_pipeline.types import DataFrame

SUMMARY = "publish recorded events again, at a chosen speed"
DESCRIPTION = """\
Publish the events of a time or version range again, in the order of their time.  They keep their versions, so a cache
ignores events that are older than its objects; --prefix separates the topics of a replay from live ones.

With --progress-file the replay can be stopped and started again.  It then repeats at most the events that were sent
since the file was last written: those of a second, or 5,000.
"""
EXAMPLES = """\
  heliograph pipeline replay --log sqlite:///var/log.db --bus zmq://127.0.0.1:8866 --speed 10 --prefix replayed
  heliograph pipeline replay --lake /data/events --from 2026-05-01T00:00:00 --to 2026-05-02T00:00:00 --speed 0 \\
      --config-file etc/heliograph.conf --progress-file /var/tmp/replay.json
"""
_SAVE_EVENTS = 5000
_SAVE_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_source(parser)
    options.add_bus(parser, "the bus to publish on (default: that of --config-file)")
    parser.add_argument("--from", dest="time_from", metavar="TIME", type=arguments.moment, help="the first time")
    parser.add_argument("--to", dest="time_to", metavar="TIME", type=arguments.moment, help="the time to stop before")
    parser.add_argument("--version-from", metavar="N", type=options.natural_int, help="the first version")
    parser.add_argument("--version-to", metavar="N", type=options.natural_int, help="the version to stop before")
    parser.add_argument(
        "--speed",
        metavar="X",
        type=float,
        default=1.0,
        help="1 as recorded (default), 10 ten times as fast, 0 without waiting",
    )
    parser.add_argument("--prefix", metavar="TOPIC", default="", help="levels to put in front of every topic")
    parser.add_argument("--progress-file", metavar="FILE", help="file with the position, to go on after a stop")
    arguments.add_spark(parser)
    options.add_json(parser, "the outcome as one JSON object")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError, and what `pubsub_api.open` raises."""
    import pubsub_api
    from pubsub_api.errors import UsageError

    if args.bus is None and not args.config_file:
        raise UsageError("name the bus: --bus, or --config-file")
    conf = arguments.read_conf(args)
    arguments.check_source(args, conf)
    arguments.require_writable(args.progress_file)
    bus = pubsub_api.open(args.bus) if args.bus else pubsub_api.open(conf=conf)
    with bus, arguments.spark_session(args, conf, "replay") as spark:
        events = arguments.read_events(spark, args, conf)
        with bus.publisher() as publisher:
            sent, skipped = _replay(events, publisher, args)
    unread = f", {skipped:,} could not be read" if skipped else ""
    output.result({"events": sent, "undecodable": skipped}, f"{sent:,} events published again{unread}")
    return exits.OK


def _replay(events: DataFrame, publisher: Publisher, args: argparse.Namespace) -> tuple[int, int]:
    from spark_pipeline.jobs.replay import ReplaySelection, count_undecodable, paced, select

    file = pathlib.Path(args.progress_file) if args.progress_file else None
    chosen = select(
        events,
        ReplaySelection(args.time_from, args.time_to, args.version_from, args.version_to, _load(file)),
    ).cache()
    sent, saved = 0, time.monotonic()
    position: ReplayPosition | None = None
    with Progress("replay", chosen.count()) as progress:
        rows = chosen.toLocalIterator(prefetchPartitions=True)
        for position, event in paced(rows, speed=args.speed, topic_prefix=args.prefix):
            publisher.send_event(event)
            sent += 1
            # By time, too: a slow replay may need a day for so many events.
            if sent % _SAVE_EVENTS == 0 or time.monotonic() - saved >= _SAVE_S:
                _save(file, publisher, position)
                progress.update(sent)
                saved = time.monotonic()
    _save(file, publisher, position)
    return sent, count_undecodable(events)


def _load(file: pathlib.Path | None) -> ReplayPosition | None:
    import msgspec

    from pubsub_api.errors import UsageError
    from spark_pipeline.jobs.replay import ReplayPosition

    if file is None or not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=ReplayPosition)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not the progress of a replay: {error}") from error


def _save(file: pathlib.Path | None, publisher: Publisher, position: ReplayPosition | None) -> None:
    """Save the position, after handing everything before it to the transport."""
    import msgspec

    publisher.flush()
    if file is None or position is None:
        return
    replace_private(file, msgspec.json.encode(position))
