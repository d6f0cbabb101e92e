"""``heliograph log``: read a durable log, record into it, and maintain it."""

from __future__ import annotations

import argparse
import contextlib
import queue
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.logs.files import add_export, add_import, run_export, run_import
from heliograph.logs.reading import (
    add_info,
    add_shard,
    add_tail,
    opened,
    run_info,
    run_tail,
    segmented,
    shards_of,
)
from heliograph.opening.logs import add_log, opened_log
from heliograph.output import Output, counted
from heliograph.process_report import add_process_report, log_numbers, reporting_process
from heliograph.terminal.long_running import add_counters, print_counters_until_end
from heliograph.terminal.progress import progress_of
from heliograph.units import Moment

if TYPE_CHECKING:
    from durable_log import LogApi, Segment
    from pubsub_api.reporting import ProcessReport

DESCRIPTION = """\
A durable log keeps published events: every topic in one of its shards, every event with an offset in its shard.

  record      append events from the bus, seal old ones and drop expired ones, until it is interrupted
  info        state of the shards, size and age of the log, lag of its consumers
  tail        print events, the newest or from an offset or a time on, of some topics or of one object
  export      write events to a file, as JSON lines or Parquet
  import      append the events of such a file, except those that the log has already
  set-shards  add shards, so that more readers can work side by side; each topic keeps its order
  seal        write all events that are not sealed yet into Parquet segments now
  trim        drop everything before an offset of a shard, or before a time
  verify      read and check everything; exit code 1 when something is wrong
  repair      list the sealed files again after the store was lost, or restored from an older copy

--log names the log, as in sqlite:///dir/log.db, redis://127.0.0.1:6379/0 or postgresql://user@host/database; without
--log, [log] url does.
"""
EXAMPLES = """\
  heliograph log record 'tenant-7/#' --log sqlite:///var/lib/heliograph/log.db --bus zmq://127.0.0.1:8866
  heliograph log info --log sqlite:///var/lib/heliograph/log.db
  heliograph log tail --log sqlite:///var/lib/heliograph/log.db --follow --json
  heliograph log tail 'tenant-7/#' --key p1 --since 2h --log sqlite:///var/lib/heliograph/log.db
  heliograph log export events.parquet 'tenant-7/#' --since 1d --log sqlite:///var/lib/heliograph/log.db
  heliograph log import events.parquet --dry-run --log postgresql://user@host/database
  heliograph log set-shards 32 --log sqlite:///var/lib/heliograph/log.db
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
    add_counters(parser)
    add_process_report(parser)
    parser.add_argument("--no-maintenance", action="store_true", help="neither seal nor drop events")
    options.add_session(parser)


def _add_trim(parser: argparse.ArgumentParser) -> None:
    add_shard(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--before", metavar="OFFSET", type=options.natural_int, help="drop events before this offset")
    what.add_argument(
        "--older-than", metavar="TIME", type=Moment,
        help="drop events from before a time, as in 2026-11-16T10:00 (UTC) or 7d (ago)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only print what would be dropped")


def _add_repair(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only print what would be done")
    what.add_argument(
        "--give-up-damaged", action="store_true",
        help="leave out frames and sealed files that are damaged or missing, and keep the rest: their events are lost, "
             "and 'verify' names their offsets from then on",
    )  # fmt: skip


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
            maintainer = stack.enter_context(Maintainer(segmented(log), on_failure=failures.put).start())
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

        stack.enter_context(reporting_process(args, process_report))

        def counters() -> dict[str, object]:
            return vars(recorder.statistics()) | (vars(maintainer.statistics) if maintainer else {})

        print_counters_until_end(output, args, counters, failures)
    return exits.OK


# -- set-shards, seal, trim, verify, repair


def _add_set_shards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shards", metavar="N", type=options.positive_int, help="the new number of shards: a multiple of the old one"
    )


def _set_shards(args: argparse.Namespace, output: Output) -> int:
    with opened(args, ignores_shards=True) as log:
        before = len(log.state())
        has_grown = log.set_shards(args.shards)
    did = f"has {args.shards} shards now, {before} before" if has_grown else f"has {args.shards} shards already"
    output.result({"shards": args.shards, "has_grown": has_grown}, f"the log {did}")
    return exits.OK


def _seal(args: argparse.Namespace, output: Output) -> int:
    with opened(args) as log, progress_of("events") as on_progress:
        record, line = seal(log, shards_of(args, log), on_progress=on_progress)
    output.result(record, line)
    return exits.OK


def seal(
    log: LogApi, shards: Iterable[int], *, on_progress: Callable[[int, int], None] = lambda _done, _total: None
) -> tuple[dict[str, Any], str]:
    """Seal all unsealed events of the shards.  Returns what was done, for scripts and for people.

    Blocks.  Raises UsageError, LogError.
    """
    from durable_log.segments.sealing import Sealer

    sealer, made = Sealer(segmented(log)), list["Segment"]()
    orphans = sealer.clean()
    states = log.state()
    waiting = {shard: states[shard].end - states[shard].sealed for shard in shards}
    for shard in waiting:
        made += sealer.seal(shard)
        on_progress(sum(one.rows for one in made), sum(waiting.values()))
    events = sum(segment.rows for segment in made)
    return (
        {"segments": [segment._asdict() for segment in made], "orphans_removed": len(orphans)},
        f"sealed {counted(events, 'event')} into {counted(len(made), 'segment')}, "
        f"removed {counted(len(orphans), 'orphan')}",
    )


def _trim(args: argparse.Namespace, output: Output) -> int:
    dropped = {}
    with opened(args) as log:
        states = log.state()
        for shard in shards_of(args, log):
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

    with opened(args) as log, progress_of("offsets") as on_progress:
        found = verify(log, on_progress=on_progress)
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
            output.line(f"{path} is not in the manifest: it is neither read nor removed")
    return exits.FAILED if found.problems else exits.OK


def _repair(args: argparse.Namespace, output: Output) -> int:
    from durable_log.loading import build_log
    from durable_log.upkeep.damaged_segments import give_up_damaged
    from durable_log.upkeep.repairing import repair
    from pubsub_api.config import new_conf

    with contextlib.closing(segmented(build_log(args.log, conf=new_conf(args.config_file)))) as log:
        log.connect()
        with progress_of("files") as on_file:
            found = repair(log, is_dry=args.dry_run, gives_up=args.give_up_damaged, on_file=on_file)
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
        output.line(f"{does} {counted(found.moved, 'event')} again, behind the events of the files: only the store had "
                    "them, at offsets that files use for other events")  # fmt: skip
    if found.given_up:
        output.line(f"gave up {counted(found.given_up, 'offset')} that were damaged")
    if found.identity != found.former_identity:
        output.line(f"the identity of the log is {found.identity} now, no longer {found.former_identity}: programs "
                    "that remember offsets of it must begin anew")  # fmt: skip
    return exits.OK


_VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], options.Run]] = {
    "record": (_add_record, _record),
    "info": (add_info, run_info),
    "tail": (add_tail, run_tail),
    "export": (add_export, run_export),
    "import": (add_import, run_import),
    "set-shards": (_add_set_shards, _set_shards),
    "seal": (add_shard, _seal),
    "trim": (_add_trim, _trim),
    "verify": (lambda _: None, _verify),
    "repair": (_add_repair, _repair),
}
