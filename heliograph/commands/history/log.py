"""``heliograph log``: look at a durable log, record into it, and take care of it."""

from __future__ import annotations

import argparse
import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.metrics import add_telling, log_numbers, told
from heliograph.opening.logs import add_log, opened_log
from heliograph.output import Output, clock_text, compact, counted, event_record, note_empty
from heliograph.terminal.reporting import add_report, report_until_end
from heliograph.units import Moment
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from durable_log import LogApi, StoredFrame
    from durable_log.storage.segmented import SegmentedLog
    from pubsub_api.reporting import ProcessReport

DESCRIPTION = """\
A durable log keeps what was published: every frame in a shard, every event with an offset in it.

  record   append what passes on the bus, and seal and drop what is due, until it is interrupted
  info     where the shards stand, the sealed segments, the streams
  tail     print events, the newest or from an offset or a time on
  seal     turn what is not sealed into Parquet segments now
  trim     drop everything before an offset of a shard, or before a time
  verify   read everything and check it; exit code 1 when something is wrong
  repair   list the sealed files again after the store was lost, or restored from an older copy

--log names the log, as in sqlite:///dir/log.db, redis://127.0.0.1:6379/0 or postgresql://user@host/database; without
it, [log] url does.
"""
EXAMPLES = """\
  heliograph log record 'tenant-7/#' --log sqlite:///var/lib/heliograph/log.db --bus zmq://127.0.0.1:8866
  heliograph log info --log sqlite:///var/lib/heliograph/log.db
  heliograph log tail --log sqlite:///var/lib/heliograph/log.db --follow --json
  heliograph log seal --log sqlite:///var/lib/heliograph/log.db
  heliograph log trim --log sqlite:///var/lib/heliograph/log.db --older-than 7d
  heliograph log verify --log sqlite:///var/lib/heliograph/log.db
  heliograph log repair --log sqlite:///var/lib/heliograph/log.db --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, verb in options.add_verbs(parser, _VERBS, description=DESCRIPTION, examples=EXAMPLES):
        add, run = _VERBS[name]
        add_log(verb)
        options.add_json(verb, "JSON, one object per line")
        add(verb)
        if name != "record":
            options.add_config_file(verb)
            options.add_context(verb)
        verb.set_defaults(run=run)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filters", nargs="+", metavar="FILTER", help="topics to record, as in 'tenant-7/#'")
    add_report(parser)
    add_telling(parser)
    parser.add_argument("--no-maintenance", action="store_true", help="neither seal nor drop anything")
    options.add_session(parser)


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", action="store_true", help="list the streams too")
    parser.add_argument("--segments", action="store_true", help="list the sealed segments too")


def _add_tail(parser: argparse.ArgumentParser) -> None:
    _add_shard(parser)
    parser.add_argument("--count", metavar="N", type=options.positive_int, default=10,
                        help="the newest N events of each shard (default: 10)")  # fmt: skip
    parser.add_argument("--offset", metavar="N", type=options.natural_int, help="from this offset on instead")
    parser.add_argument("--since", metavar="TIME", type=Moment,
                        help="what came since 2026-11-16T10:00 (UTC), or in the last 2h, instead")  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until interrupted")


def _add_shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard", metavar="N", type=options.natural_int, help="only this shard (default: all)")


def _add_trim(parser: argparse.ArgumentParser) -> None:
    _add_shard(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--before", metavar="OFFSET", type=options.natural_int, help="drop what is before this offset")
    what.add_argument(
        "--older-than", metavar="TIME", type=Moment,
        help="drop what came before 2026-11-16T10:00 (UTC), or longer than 7d ago",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would be dropped")


def _add_repair(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only say what would be done")
    what.add_argument(
        "--give-up-damaged", action="store_true",
        help="leave out frames and sealed files that are damaged or missing, keep the rest: what they held is lost, "
             "and 'verify' names their offsets from then on",
    )  # fmt: skip


@contextlib.contextmanager
def _open(args: argparse.Namespace) -> Iterator[LogApi]:
    with opened_log(args) as log:
        note_empty(log, "heliograph log")
        yield log


def _segmented(log: LogApi) -> SegmentedLog:
    from durable_log.storage.segmented import SegmentedLog

    if not isinstance(log, SegmentedLog):
        raise UsageError("the driver of this log has no segments")
    return log


def _shards(args: argparse.Namespace, log: LogApi) -> list[int]:
    if args.shard is None:
        return list(range(log.shards))
    if args.shard >= log.shards:
        raise UsageError(f"there is no shard {args.shard}: the log has {log.shards}, counted from 0")
    return [args.shard]


# -- record


def _record(args: argparse.Namespace, output: Output) -> int:
    from durable_log.recording.recorder import Recorder
    from durable_log.upkeep.maintenance import Maintainer

    failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    with (
        opened_log(args, must_exist=False) as log,
        options.open_session(args) as session,
        contextlib.ExitStack() as stack,
    ):
        maintainer = None
        if not args.no_maintenance:
            maintainer = stack.enter_context(Maintainer(_segmented(log), on_failure=failures.put).start())
        recorder = stack.enter_context(Recorder(session, log, args.filters, on_failure=failures.put))
        output.result({"recording": args.filters}, f"recording {', '.join(args.filters)}; Ctrl-C ends it")
        output.flush()

        def process_report() -> ProcessReport:
            from pubsub_api.reporting import ProcessReport

            report = ProcessReport(role="log-recorder")
            report.add("recorder", recorder.statistics)
            report.add("log", lambda: log_numbers(log))
            report.add_session(session, name="recorder")
            if maintainer is not None:
                report.add("log_maintenance", lambda: maintainer.statistics)
            return report

        stack.enter_context(told(args, process_report))

        def counters() -> dict[str, object]:
            return vars(recorder.statistics()) | (vars(maintainer.statistics) if maintainer else {})

        report_until_end(output, args, counters, failures)
    return exits.OK


# -- info


def _info(args: argparse.Namespace, output: Output) -> int:
    with _open(args) as log:
        identity, states, segments, risks = log.identity, log.state(), log.segments(), log.check_settings()
        streams = [(state.shard, stream) for state in states for stream in log.streams(state.shard)]
    sealed = dict.fromkeys(range(len(states)), 0)
    for segment in segments:
        sealed[segment.shard] += segment.bytes
    shards = [state._asdict() | {"sealed_bytes": sealed[state.shard]} for state in states]
    stream_rows = [{"shard": shard, **stream._asdict(), "guid": stream.guid.hex()} for shard, stream in streams]
    if output.is_json:
        record: dict[str, Any] = {
            "identity": identity,
            "shards": shards,
            "segments": len(segments),
            "streams": len(streams),
            "warnings": risks,
        }
        if args.segments:
            record["segments"] = [segment._asdict() for segment in segments]
        if args.streams:
            record["streams"] = stream_rows
        output.record(record)
        return exits.OK
    columns = ("shard", "start", "sealed", "end", "bytes", "sealed_bytes")
    used = [shard for shard in shards if shard["end"]]
    if used:
        output.table("", columns, [[shard[column] for column in columns] for shard in used])
    if len(used) < len(shards):
        output.line(f"{len(shards) - len(used)} of {counted(len(shards), 'shard')} were never appended to")
    events = sum(state.end - state.start for state in states)
    missing = sum(high - low + 1 for _, stream in streams for low, high in stream.missing)
    output.line(f"{counted(events, 'event')}, {counted(len(segments), 'segment')}, {counted(len(streams), 'stream')}, "
                f"{counted(missing, 'event')} missing; the log {identity}")  # fmt: skip
    if args.segments:
        output.table("segments", ("shard", "first", "end", "rows", "bytes", "path"),
                     [(one.shard, one.first, one.end, one.rows, one.bytes, one.path) for one in segments])  # fmt: skip
    if args.streams:
        rows = [(shard, one.guid.hex(), one.topic, one.last, _ranges(one.missing)) for shard, one in streams]
        output.table("streams", ("shard", "publisher", "topic", "last", "missing"), rows)
    return exits.OK


def _ranges(missing: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{low}..{high}" for low, high in missing)


# -- tail


def _tail(args: argparse.Namespace, output: Output) -> int:
    with _open(args) as log, contextlib.suppress(KeyboardInterrupt):
        states = log.state()
        offsets = {shard: _first_offset(args, log, states[shard].start, states[shard].end, shard)
                   for shard in _shards(args, log)}  # fmt: skip
        while True:
            ends = [state.end for state in log.state()]  # a shard may end with a hole
            for shard, offset in offsets.items():
                offsets[shard] = max(_print_from(output, log, shard, offset), ends[shard])
            output.flush()
            if not args.follow:
                break
            log.wait(offsets, timeout_s=3600)
    return exits.OK


def _print_from(output: Output, log: LogApi, shard: int, offset: int) -> int:
    """Print what a shard has from an offset on; returns where it ends."""
    while frames := log.read(shard, offset):
        for stored in frames:
            _print_frame(output, stored, offset)
        offset = frames[-1].end
    return offset


def _first_offset(args: argparse.Namespace, log: LogApi, start: int, end: int, shard: int) -> int:
    if args.offset is not None:
        return max(start, int(args.offset))
    if args.since is not None:
        return log.find(shard, args.since.ns(log.now_ns()))
    return max(start, end - int(args.count))


def _print_frame(output: Output, stored: StoredFrame, first: int) -> None:
    header = stored.header()
    for position, event in enumerate(stored.events()):
        offset = stored.offset + position
        if offset < first:
            continue
        record = {
            "shard": stored.shard, "offset": offset, "guid": header.guid.hex(),
            "number": header.first + stored.skipped + position, "appended_ns": str(stored.appended_ns),
            **event_record(event),
        }  # fmt: skip
        what = f"{event.action} {event.table}/{event.key} v{event.version} {compact(event.value)}"
        output.result(record, f"{stored.shard}:{offset} {clock_text(stored.appended_ns)} {event.topic} {what}")


# -- seal, trim, verify, repair


def _seal(args: argparse.Namespace, output: Output) -> int:
    with _open(args) as log:
        output.result(*seal(log, _shards(args, log)))
    return exits.OK


def seal(log: LogApi, shards: Iterable[int]) -> tuple[dict[str, Any], str]:
    """Seal now what is not sealed.  What was done, for scripts and for people.  Raises UsageError, LogError."""
    from durable_log.segments.sealing import Sealer

    sealer = Sealer(_segmented(log))
    orphans = sealer.clean()
    made = [segment for shard in shards for segment in sealer.seal(shard)]
    events = sum(segment.rows for segment in made)
    return (
        {"segments": [segment._asdict() for segment in made], "orphans_removed": len(orphans)},
        f"sealed {counted(events, 'event')} into {counted(len(made), 'segment')}, "
        f"removed {counted(len(orphans), 'orphan')}",
    )


def _trim(args: argparse.Namespace, output: Output) -> int:
    dropped = {}
    with _open(args) as log:
        states = log.state()
        for shard in _shards(args, log):
            before = args.before
            if before is None:
                before = log.find(shard, args.older_than.ns(log.now_ns()))
            if args.dry_run:
                state = states[shard]
                dropped[shard] = max(0, min(before, state.end) - state.start)
            else:
                dropped[shard] = log.trim(shard, before)
    if args.dry_run:
        output.result({"dry_run": True, "dropped": dropped},
                      f"would drop at most {counted(sum(dropped.values()), 'event')}")  # fmt: skip
        return exits.OK
    output.result({"dropped": dropped}, f"dropped {counted(sum(dropped.values()), 'event')}")
    return exits.OK


def _verify(args: argparse.Namespace, output: Output) -> int:
    from durable_log.upkeep.verifying import verify

    with _open(args) as log:
        found = verify(log)
    if output.is_json:
        output.record(found)
    else:
        output.line(f"read {counted(found.events, 'event')} in {counted(found.frames, 'frame')}, "
                    f"checked {counted(found.segments, 'segment')}")  # fmt: skip
        for problem in found.problems:
            output.line(problem, style="bold red")
        for hole in found.given_up:
            output.line(hole)
        for path in found.unlisted:
            output.line(f"{path} is not in the manifest: nobody reads it, and nobody removes it")
    return exits.FAILED if found.problems else exits.OK


def _repair(args: argparse.Namespace, output: Output) -> int:
    from durable_log.loading import build_log
    from durable_log.upkeep.damaged_segments import give_up_damaged
    from durable_log.upkeep.repairing import repair
    from heliograph.terminal.progress import Progress
    from pubsub_api.config import new_conf

    with contextlib.closing(_segmented(build_log(args.log, conf=new_conf(args.config_file)))) as log:
        log.connect()
        with contextlib.ExitStack() as stack:
            bars: list[Progress] = []

            def on_file(done: int, total: int) -> None:
                if not bars:
                    bars.append(stack.enter_context(Progress("files", total)))
                bars[0].update(done)

            found = repair(log, is_dry=args.dry_run, on_file=on_file)
        if args.give_up_damaged:
            give_up_damaged(log, found)
    if output.is_json:
        output.record(found)
        return exits.OK
    for remark in found.notes:
        output.line(remark, style="bold red")
    did = "would list" if args.dry_run else "listed"
    output.line(f"read {counted(found.files, 'file')}, {did} {counted(found.added, 'segment')} more with "
                f"{counted(found.events, 'event')}; the manifest has {counted(found.listed, 'segment')}")  # fmt: skip
    if found.moved:
        does = "would append" if args.dry_run else "appended"
        output.line(f"{does} {counted(found.moved, 'event')} again, behind the files: only the store had them, at "
                    "offsets that the files have")  # fmt: skip
    if found.given_up:
        output.line(f"gave up {counted(found.given_up, 'offset')} of what was damaged")
    if found.identity != found.former_identity:
        output.line(f"the log is {found.identity} now, no longer {found.former_identity}: what remembers offsets of it "
                    "has to begin anew")  # fmt: skip
    return exits.OK


_VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], options.Run]] = {
    "record": (_add_record, _record),
    "info": (_add_info, _info),
    "tail": (_add_tail, _tail),
    "seal": (_add_shard, _seal),
    "trim": (_add_trim, _trim),
    "verify": (lambda _: None, _verify),
    "repair": (_add_repair, _repair),
}
