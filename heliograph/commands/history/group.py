"""``heliograph group``: groups of consumers over a durable log."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.opening.logs import add_log, opened_log
from heliograph.output import Output, counted, event_record, note
from heliograph.process_report import add_process_report, group_numbers, log_numbers, reporting_process
from heliograph.terminal.confirming import is_confirmed
from heliograph.terminal.long_running import wait_until_end
from heliograph.units import Moment
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from durable_log import LogApi
    from pubsub_api.reporting import ProcessReport
    from shared_subscriptions.core.declaration import Declaration
    from shared_subscriptions.groups import GroupView, PartitionView, Start
    from shared_subscriptions.redriving import Redriven
    from spark_pipeline.reading.group_jobs import JobsView

DESCRIPTION = """\
Groups of consumers that share the events of a topic filter, over a durable log.

  declare  make a group; from now on its events are kept, also while it has no member
  list     every group, with its lag
  show     members and their partitions, lag, oldest unacknowledged event, redeliveries, moves, Spark jobs
  pause    deliver nothing; events are still kept
  resume   end a pause or a drain
  drain    deliver the events that are there now and no later ones
  seek     go on at another place: now, earliest, a time or offsets
  release  free the name of a Spark job whose checkpoint is lost; the next job of that name gets its unfinished events
  letters  its dead letters: events that used up their attempts
  redrive  append the events of its dead letters again, so that they are delivered once more
  destroy  remove the group and its progress; the log keeps its events
  serve    lead the group and record its events from the bus, without being a member, until interrupted
  simulate check the protocol of groups in a simulated network, with thousands of seeds

A program becomes a member by subscribing to $shared/NAME/FILTER or $queue/NAME/FILTER.
"""
EXAMPLES = """\
  heliograph group declare billing 'tenant-7/#' --log sqlite:///var/lib/heliograph/log.db
  heliograph group declare audit '#' --start earliest --queue --lanes 8 --log sqlite:///var/lib/heliograph/log.db
  heliograph group list --json --log sqlite:///var/lib/heliograph/log.db
  heliograph group show billing --log sqlite:///var/lib/heliograph/log.db
  heliograph group pause billing --log sqlite:///var/lib/heliograph/log.db
  heliograph group resume billing --log sqlite:///var/lib/heliograph/log.db
  heliograph group drain billing --log sqlite:///var/lib/heliograph/log.db
  heliograph group seek billing --start 2026-11-16T10:00 --log sqlite:///var/lib/heliograph/log.db
  heliograph group release billing job-1 --log sqlite:///var/lib/heliograph/log.db
  heliograph group letters billing --log sqlite:///var/lib/heliograph/log.db
  heliograph group redrive billing --dry-run --log sqlite:///var/lib/heliograph/log.db
  heliograph group destroy billing --yes --log sqlite:///var/lib/heliograph/log.db
  heliograph group serve billing --log sqlite:///var/lib/heliograph/log.db --bus zmq://127.0.0.1:8866
  heliograph group simulate --seeds 5000 --profile chaos
  heliograph group simulate --seed 4711
"""

_LISTED_OFFSETS_MAX = 10_000
"""How many offsets of each shard are read at most for one group in a list."""

PARTITION_COLUMNS = (
    "partition", "shard", "lane", "status", "member", "low", "end", "lag", "oldest", "retrying", "redelivered",
    "expired",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, verb in options.add_verbs(parser, _VERBS, description=DESCRIPTION, examples=EXAMPLES):
        add, run = _VERBS[name]
        if name != "simulate":
            add_log(verb)
        if name not in ("simulate", "serve"):
            options.add_context(verb)
        options.add_json(verb, "JSON")
        add(verb)
        verb.set_defaults(run=run)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the group")
    options.add_config_file(parser)


def _add_start(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    parser.add_argument(
        "--start", metavar="WHERE", type=_start, required=is_required, default="now",
        help="now, earliest, a time as in 2026-11-16T10:00 (UTC) or 2h (ago), or offsets as in 0=1200,3=70 (shards not "
             "named: now)" + ("" if is_required else " (default: now)"),
    )  # fmt: skip


def _add_declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the group")
    parser.add_argument("filter", metavar="FILTER", help="its topics, as in 'tenant-7/#'")
    parser.add_argument("--queue", action="store_true", help="deliver event by event, in no order ($queue)")
    parser.add_argument(
        "--lanes", metavar="N", type=options.positive_int,
        help="partitions that each shard is divided into (default: [groups] lanes); not with --queue",
    )  # fmt: skip
    _add_start(parser, is_required=False)
    options.add_config_file(parser)


def _add_seek(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    _add_start(parser, is_required=True)


def _add_release(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("job", metavar="JOB", help='the job, as its option "query" names it')


def _add_destroy(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    options.add_confirmation(parser)


def _add_letters(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("--all", action="store_true", help="those that were redriven, too")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the group")
    options.add_timeout(parser)
    add_process_report(parser)
    options.add_session(parser)


def _start(text: str) -> Start | Moment:
    """An argparse type: the value of ``--start``."""
    if text == "now":
        return "now"
    if text == "earliest":
        return "earliest"
    try:
        if "=" in text:
            return {int(shard): int(offset) for shard, offset in (pair.split("=") for pair in text.split(","))}
        return Moment(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither now, earliest, a time such as 2026-11-16T10:00 or 2h (ago), nor offsets"
        ) from None


def _start_in(log: LogApi, start: Start | Moment) -> Start:
    """The place in the log, with a time by the clock of the log's store, which has also timed the events."""
    return start.at(log.now_ns()) if isinstance(start, Moment) else start


# -- verbs


def _declare(args: argparse.Namespace, output: Output) -> int:
    from pubsub_api.config import new_conf
    from shared_subscriptions import config, groups

    conf = config.register(new_conf(args.config_file))
    lanes = args.lanes or (1 if args.queue else conf[config.GROUP].lanes)
    with opened_log(args, must_exist=False) as log:
        found = groups.declare(
            log, args.name, args.filter, mode="queue" if args.queue else "shared", lanes=lanes,
            start=_start_in(log, args.start), lease=config.lease_settings(conf),
        )  # fmt: skip
    return _print_declaration(output, found, "is declared")


def _verb_that(change: str, outcome: str) -> options.Run:
    """A verb that calls the function ``change`` of `groups` and prints that the group is as ``outcome`` says."""

    def run(args: argparse.Namespace, output: Output) -> int:
        from shared_subscriptions import groups

        with opened_log(args) as log:
            return _print_declaration(output, getattr(groups, change)(log, args.name), outcome)

    return run


def _seek(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import groups

    with opened_log(args) as log:
        found = groups.seek(log, args.name, _start_in(log, args.start))
    return _print_declaration(output, found, "goes on at another place")


def _release(args: argparse.Namespace, output: Output) -> int:
    from spark_pipeline.reading import group_jobs

    with opened_log(args) as log:
        left = group_jobs.release(log, args.name, args.job)
    output.result(
        {"name": args.name, "job": args.job, "in_work": left},
        f"the next job {args.job} of group {args.name} gets {counted(left, 'event')} that the last one left unfinished",
    )
    return exits.OK


def _letters(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import groups, redriving

    with opened_log(args) as log:
        groups.get(log, args.name)
        first = 0 if args.all else redriving.progress(log, args.name).until
        one = None
        for one in redriving.letters(log, args.name, first):
            event = one.event
            line = f"{one.offset} {event.topic} {event.action} {event.table}/{event.key} v{event.version}: {one.reason}"
            record = {"offset": one.offset, "reason": one.reason, "attempts": one.attempts, **event_record(event)}
            output.result(record, line)
    if one is None:
        note(f"heliograph group: {args.name} has no dead letters{'' if args.all else ' that were not redriven'}")
    return exits.OK


def _redrive(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import redriving

    with opened_log(args) as log:
        found = redriving.redrive(log, args.name, is_dry=True)
        if found.letters or found.unfit:
            if not is_confirmed(args, output, redrive_text(args.name, found)):
                return exits.OK if args.dry_run else exits.FAILED
            found = redriving.redrive(log, args.name, until=found.until)
    output.result(vars(found), redriven_text(args.name, found))
    return exits.OK


def redrive_text(name: str, found: Redriven) -> str:
    """What redriving would do; begins with a verb."""
    others = f"; the groups {', '.join(found.others[:10])} get them once more, too" if found.others else ""
    return f"append the events of {counted(found.letters, 'dead letter')} of group {name} to the log again{others}"


def redriven_text(name: str, found: Redriven) -> str:
    """What redriving has done."""
    unfit = f"; {counted(found.unfit, 'letter')} held no event of the group" if found.unfit else ""
    more = "" if found.is_all else "; there are more, redrive again"
    return f"redrove {counted(found.letters, 'dead letter')} of group {name}{unfit}{more}"


def _destroy(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import groups

    with opened_log(args) as log:
        view = groups.show(log, args.name, offsets_max=_LISTED_OFFSETS_MAX)
        if not is_confirmed(args, output, f"destroy group {args.name} and its progress; its lag is {lag_text(view)}"):
            return exits.OK if args.dry_run else exits.FAILED
        groups.destroy(log, args.name)
    output.result({"name": args.name, "destroyed": True}, f"group {args.name} is destroyed")
    return exits.OK


def _print_declaration(output: Output, found: Declaration, outcome: str) -> int:
    record = {
        "name": found.name, "mode": found.mode, "filter": found.topic_filter, "lanes": found.lanes,
        "wish": found.wish.value, "generation": found.generation, "positions": list(found.positions),
        "until": list(found.until),
    }  # fmt: skip
    line = f"group {found.name} {outcome}; members subscribe to ${found.mode}/{found.name}/{found.topic_filter}"
    output.result(record, line)
    return exits.OK


def _list(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import groups

    with opened_log(args) as log:
        views = [groups.show(log, name, offsets_max=_LISTED_OFFSETS_MAX) for name in groups.names(log)]
    if output.is_json:
        output.record([_record(view) for view in views])
    else:
        rows = [
            (view.name, f"${view.mode}/{view.name}/{view.topic_filter}", view.wish,
             len(view.status.members) if view.status else 0, len(view.streams), lag_text(view))
            for view in views
        ]  # fmt: skip
        output.table("groups", ("name", "subscribe to", "state", "members", "partitions", "lag"), rows)
    return exits.OK


def _show(args: argparse.Namespace, output: Output) -> int:
    from shared_subscriptions import groups
    from spark_pipeline.reading import group_jobs

    with opened_log(args) as log:
        view, jobs = groups.show(log, args.name), group_jobs.show(log, args.name)
    if output.is_json:
        output.record({**_record(view), "jobs": jobs if jobs.jobs else None})
    else:
        _print_group(output, view)
        _print_jobs(output, jobs)
    return exits.OK


def _record(view: GroupView) -> dict[str, Any]:
    import msgspec

    record = dict(vars(view))
    record["status"] = None if view.status is None else msgspec.to_builtins(view.status)
    return record


def _print_group(output: Output, view: GroupView) -> None:
    state = f"{view.wish}, drained" if view.is_drained else view.wish
    lanes = counted(view.lanes, "lane")
    output.line(f"${view.mode}/{view.name}/{view.topic_filter}: {state}, {lanes} per shard, lag {lag_text(view)}")
    if view.missing:
        output.line(f"{counted(view.missing, 'event')} of its topics are not in the log: lost, or sent before the "
                    "recording began; 'heliograph log info --streams' names them", style="bold red")  # fmt: skip
    if view.expired:
        output.line(f"retention has dropped {counted(view.expired, 'offset')} that the group had not handled: at most "
                    "as many of its events are lost", style="bold red")  # fmt: skip
    for one in view.streams:
        for first, end in one.damaged:
            output.line(f"partition {one.stream} cannot read offsets {first} to {end - 1} of shard {one.shard}: it "
                        "waits until 'heliograph log repair' repairs them or gives them up",
                        style="bold red")  # fmt: skip
    rows = [
        (one.stream, one.shard, one.lane, one.status, one.owner, one.low, one.end, lag_text(one),
         "" if one.oldest_s is None else f"{one.oldest_s:.1f} s", one.retrying, one.redelivered, one.expired)
        for one in view.streams
    ]  # fmt: skip
    output.table("partitions", PARTITION_COLUMNS, rows)
    if view.heard_s is None or view.status is None:
        output.line("no process has led this group yet")
        return
    if view.status.is_cut:
        output.line("there are too many members and partitions for one record: some are left out", style="bold red")
    if view.leader:
        members = [(one.name, one.state, ", ".join(map(str, one.streams))) for one in view.status.members]
        output.table(f"members, led from {view.leader} in epoch {view.status.epoch}, heard {view.heard_s:.1f} s ago",
                     ("member", "state", "partitions"), members)  # fmt: skip
    else:
        output.line(f"this group has no leader: the last one was heard {view.heard_s:.1f} s ago, and its members are "
                    "not known", style="bold red")  # fmt: skip
    since_s = max(0.0, (time.time_ns() - view.status.reported_ns) / 1e9)
    moves = [
        (one.stream, one.source or "none", one.target, one.reason, f"{one.ago_s + since_s:.1f} s ago")
        for one in reversed(view.status.moves[-10:])
    ]
    if moves:
        output.table("last moves", ("partition", "from", "to", "because", "when"), moves)
    output.line(", ".join(f"{name} {count}" for name, count in sorted(view.status.counters.items())))


def lag_text(one: GroupView | PartitionView) -> str:
    """The lag of a group or of one of its partitions, for people."""
    return f"{one.lag:,}" if one.is_lag_exact else f"at most {one.lag:,}"


def _print_jobs(output: Output, view: JobsView) -> None:
    if not view.jobs:
        return
    rows = [(job.name, job.turns, job.in_work, "" if job.is_claimed else "released") for job in view.jobs]
    output.table(f"Spark jobs, lag {view.lag}, expired {view.expired}", ("job", "turns", "in work", "state"), rows)


def _serve(args: argparse.Namespace, output: Output) -> int:
    """Raises GroupNotFound."""
    import durable_log
    from shared_subscriptions import groups
    from shared_subscriptions.leading.serving import GroupService

    if args.bus is None and not args.config_file:
        raise UsageError("name the bus whose events the group records, with --bus or --config-file")
    with (
        options.open_session(args) as session,
        contextlib.closing(durable_log.open(args.log, conf=session.conf, must_exist=True)) as log,
    ):
        found = groups.get(log, args.name)

        def process_report() -> ProcessReport:
            from pubsub_api.reporting import ProcessReport

            report = ProcessReport(name=args.name, role="group-service")
            report.add("group", lambda: group_numbers(log, args.name, _LISTED_OFFSETS_MAX), name=args.name)
            report.add("log", lambda: log_numbers(log))
            report.add_session(session, name="group")
            return report

        with GroupService(session, log, args.name) as service, reporting_process(args, process_report):
            _print_declaration(output, found, "is served; Ctrl-C ends it")
            output.flush()
            wait_until_end(args)
            if output.is_json:
                output.record({"is_leading": service.is_leading, "recorded": service.statistics()})
    return exits.OK


def _simulate(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError for a profile that does not exist."""
    from heliograph.terminal.progress import Progress
    from shared_subscriptions.testing.simulator import PROFILES, run_seeds

    if args.profile is not None and args.profile not in PROFILES:
        raise UsageError(f"there is no profile {args.profile!r}; there are {', '.join(PROFILES)}")
    first, count = (args.first, args.seeds) if args.seed is None else (args.seed, 1)
    done = 0
    with Progress("seeds", count) as progress:

        def on_progress(_outcome: object) -> None:
            nonlocal done
            done += 1
            progress.update(done)

        failures = run_seeds(first, count, on_progress, profile=PROFILES.get(args.profile or ""))
    if output.is_json:
        found = [{"seed": one.seed, "profile": one.profile, "what": one.what, "trace": one.trace} for one in failures]
        output.record({"seeds": count, "first": first, "failures": found})
    else:
        output.line(f"{counted(count, 'seed')} from {first}, {len(failures)} failed")
        for failure in failures:
            output.line(str(failure) if args.seed is not None else f"seed {failure.seed}: {failure.what}")
            output.line(f"  replay: heliograph group simulate --seed {failure.seed} --profile {failure.profile}")
    return exits.FAILED if failures else exits.OK


_VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], options.Run]] = {
    "declare": (_add_declare, _declare),
    "list": (options.add_config_file, _list),
    "show": (_add_name, _show),
    "pause": (_add_name, _verb_that("pause", "is paused")),
    "resume": (_add_name, _verb_that("resume", "is active")),
    "drain": (_add_name, _verb_that("drain", "is draining")),
    "seek": (_add_seek, _seek),
    "release": (_add_release, _release),
    "letters": (_add_letters, _letters),
    "redrive": (_add_destroy, _redrive),
    "destroy": (_add_destroy, _destroy),
    "serve": (_add_serve, _serve),
    "simulate": (options.add_seeds, _simulate),
}
