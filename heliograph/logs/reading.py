"""``heliograph log info`` and ``heliograph log tail``: they read a log, and change nothing."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.opening.logs import opened_log
from heliograph.output import Output, clock_text, compact, counted, event_record, note_empty
from heliograph.units import Moment, duration_text
from pubsub_api.core.topics import FilterSet, matches
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from durable_log import LogApi, Segment, ShardState, StoredFrame
    from durable_log.storage.segmented import SegmentedLog
    from shared_subscriptions.groups import GroupView

_LISTED_OFFSETS_MAX = 10_000
"""How many offsets of each shard are read to count the lag of a group; all later events count as lag."""


@contextlib.contextmanager
def opened(args: argparse.Namespace, *, ignores_shards: bool = False) -> Iterator[LogApi]:
    """The log of the options, for a ``with``; it must exist.  Prints a note when it is empty."""
    with opened_log(args, ignores_shards=ignores_shards) as log:
        note_empty(log, "heliograph log")
        yield log


def segmented(log: LogApi) -> SegmentedLog:
    """The log as one that can seal.  Raises UsageError when its driver cannot."""
    from durable_log.storage.segmented import SegmentedLog

    if not isinstance(log, SegmentedLog):
        raise UsageError("the driver of this log has no segments")
    return log


def add_shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard", metavar="N", type=options.natural_int, help="only this shard (default: all)")


def shards_of(args: argparse.Namespace, log: LogApi) -> list[int]:
    """The shard that ``--shard`` names, or all.  Raises UsageError."""
    if args.shard is None:
        return list(range(log.shards))
    if args.shard >= log.shards:
        raise UsageError(f"there is no shard {args.shard}: the log has {log.shards}, counted from 0")
    return [args.shard]


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filters", nargs="*", metavar="FILTER", help="topics, as in 'tenant-7/#' (default: all)")


def add_since(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--since", metavar="TIME", type=Moment, help=what)


# -- info


def add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", action="store_true", help="list the streams, too")
    parser.add_argument("--segments", action="store_true", help="list the sealed segments, too")


def run_info(args: argparse.Namespace, output: Output) -> int:
    from durable_log.segments.topic_retention import TopicAges
    from shared_subscriptions import groups

    with opened(args) as log:
        identity, states, segments, risks = log.identity, log.state(), log.segments(), log.check_settings()
        streams = [(state.shard, stream) for state in states for stream in log.streams(state.shard)]
        views = [groups.show(log, name, offsets_max=_LISTED_OFFSETS_MAX) for name in groups.names(log)]
        age_s, settings = _age_s(log, states, segments), log.conf["log"]
        retention = {"age_s": settings.retention_age, "topics": settings.retention_topics,
                     "bytes": settings.retention_bytes}  # fmt: skip
        ages = TopicAges(settings.retention_topics, settings.retention_age)
    sealed = dict.fromkeys(range(len(states)), 0)
    for segment in segments:
        sealed[segment.shard] += segment.bytes
    shards = [state._asdict() | {"sealed_bytes": sealed[state.shard]} for state in states]
    size = sum(state.bytes for state in states) + sum(sealed.values())
    dropped = sum(one.events for segment in segments for one in segment.dropped)
    topics = {stream.topic for _, stream in streams}
    consumers = [_consumer(view, [ages.of(one) for one in topics if matches(view.topic_filter, one)]) for view in views]
    if output.is_json:
        stream_rows = [{"shard": shard, **stream._asdict(), "guid": stream.guid.hex()} for shard, stream in streams]
        output.record({
            "identity": identity, "shards": shards, "bytes": size, "age_s": age_s, "retention": retention,
            "dropped_by_topic": dropped,
            "groups": consumers,
            "segments": [segment._asdict() for segment in segments] if args.segments else len(segments),
            "streams": stream_rows if args.streams else len(streams),
            "warnings": risks,
        })  # fmt: skip
        return exits.OK
    _print_shards(output, shards)
    events = sum(state.end - state.start for state in states)
    missing = sum(high - low + 1 for _, stream in streams for low, high in stream.missing)
    output.line(f"{counted(events, 'event')}, {counted(len(segments), 'segment')}, {counted(len(streams), 'stream')}, "
                f"{counted(missing, 'event')} missing; the log {identity}")  # fmt: skip
    _print_retention(output, size, age_s, retention)
    if dropped:
        output.line(f"of the sealed segments that are left, retention by topic has dropped {counted(dropped, 'event')}")
    if consumers:
        output.table("groups", ("group", "lag", "oldest", "until dropped", "expired"), map(_consumer_row, consumers))
    if args.segments:
        output.table("segments", ("shard", "first", "end", "rows", "bytes", "path"),
                     [(one.shard, one.first, one.end, one.rows, one.bytes, one.path) for one in segments])  # fmt: skip
    if args.streams:
        rows = [(shard, one.guid.hex(), one.topic, one.last, _ranges(one.missing)) for shard, one in streams]
        output.table("streams", ("shard", "publisher", "topic", "last", "missing"), rows)
    return exits.OK


def _age_s(log: LogApi, states: Sequence[ShardState], segments: Sequence[Segment]) -> float | None:
    """The age of the oldest event in the log, by the store's clock; None for an empty log."""
    oldest = {one.shard: one.appended_ns_min for one in reversed(segments) if one.rows}
    for state in states:
        if state.shard not in oldest and state.start < state.end:
            found = log.appended_at(state.shard, max(state.start, state.sealed))
            if found is not None:
                oldest[state.shard] = found
    return max(0.0, (log.now_ns() - min(oldest.values())) / 1e9) if oldest else None


def _consumer(view: GroupView, ages_s: Sequence[float]) -> dict[str, Any]:
    """The lag of a group, and after how long retention would drop its oldest event, given the ages of its topics."""
    oldest_s = max((one.oldest_s for one in view.streams if one.oldest_s is not None), default=None)
    retention_s = min(filter(None, ages_s), default=None)
    left_s = None if oldest_s is None or retention_s is None else retention_s - oldest_s
    return {
        "name": view.name, "lag": view.lag, "is_lag_exact": view.is_lag_exact, "oldest_s": oldest_s, "left_s": left_s,
        "expired": view.expired,
    }  # fmt: skip


def _consumer_row(found: dict[str, Any]) -> Sequence[object]:
    lag = found["lag"] if found["is_lag_exact"] else f"at most {found['lag']}"
    times = ("" if found[name] is None else duration_text(found[name]) for name in ("oldest_s", "left_s"))
    return (found["name"], lag, *times, found["expired"])


def _print_shards(output: Output, shards: Sequence[dict[str, int]]) -> None:
    columns = ("shard", "start", "sealed", "end", "bytes", "sealed_bytes")
    used = [shard for shard in shards if shard["end"]]
    if used:
        output.table("", columns, [[shard[column] for column in columns] for shard in used])
    if len(used) < len(shards):
        output.line(f"{len(shards) - len(used)} of {counted(len(shards), 'shard')} were never appended to")


def _print_retention(output: Output, size: int, age_s: float | None, retention: dict[str, Any]) -> None:
    age = "" if age_s is None else f", the oldest event is {duration_text(age_s)} old"
    limits = [f"after {duration_text(retention['age_s'])}"] if retention["age_s"] else []
    limits += [f"by topic ({', '.join(retention['topics'])})"] if retention["topics"] else []
    limits += [f"beyond {counted(retention['bytes'], 'byte')}"] if retention["bytes"] else []
    rule = f"dropped {' and '.join(limits)}" if limits else "nothing is dropped"
    output.line(f"{counted(size, 'byte')}{age}; retention as configured here: {rule}")


def _ranges(missing: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{low}..{high}" for low, high in missing)


# -- tail


def add_tail(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    add_shard(parser)
    parser.add_argument("--key", metavar="KEY", help="only events of the objects with this key")
    parser.add_argument("--count", metavar="N", type=options.positive_int, default=10,
                        help="the newest N events of each shard (default: 10)")  # fmt: skip
    parser.add_argument("--offset", metavar="N", type=options.natural_int, help="from this offset on instead")
    add_since(parser, "events since a time instead, as in 2026-11-16T10:00 (UTC) or 2h (ago)")
    parser.add_argument("--follow", action="store_true", help="go on with new events, until interrupted")


def run_tail(args: argparse.Namespace, output: Output) -> int:
    wanted = _Wanted(args)
    with opened(args) as log, contextlib.suppress(KeyboardInterrupt):
        states = log.state()
        offsets = {shard: _first_offset(args, log, states[shard], wanted) for shard in shards_of(args, log)}
        while True:
            ends = [state.end for state in log.state()]  # a shard may end with a hole
            for shard, offset in offsets.items():
                offsets[shard] = max(_print_from(output, log, shard, offset, wanted), ends[shard])
            output.flush()
            if not args.follow:
                break
            log.wait(offsets, timeout_s=3600)
    return exits.OK


class _Wanted:
    """The choice of events that are printed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._filters = FilterSet(args.filters) if args.filters else None
        self._key: str | None = args.key

    @property
    def is_all(self) -> bool:
        return self._filters is None and self._key is None

    def records(self, stored: StoredFrame, first: int) -> Iterator[tuple[dict[str, Any], str]]:
        """The chosen events of a frame from an offset on, each as a record for scripts and a line for people."""
        header = stored.header()
        if self._filters is not None and not self._filters.match(header.topic):
            return
        for position, event in enumerate(stored.events()):
            offset = stored.offset + position
            if offset < first or (self._key is not None and event.key != self._key):
                continue
            record = {
                "shard": stored.shard, "offset": offset, "guid": header.guid.hex(),
                "number": header.first + stored.skipped + position, "appended_ns": str(stored.appended_ns),
                **event_record(event),
            }  # fmt: skip
            what = f"{event.action} {event.table}/{event.key} v{event.version} {compact(event.value)}"
            yield record, f"{stored.shard}:{offset} {clock_text(stored.appended_ns)} {event.topic} {what}"


def _print_from(output: Output, log: LogApi, shard: int, offset: int, wanted: _Wanted) -> int:
    """Print the chosen events of a shard from an offset on; returns the offset behind the last one."""
    while frames := log.read(shard, offset):
        for stored in frames:
            for record, line in wanted.records(stored, offset):
                output.result(record, line)
        offset = frames[-1].end
    return offset


def _first_offset(args: argparse.Namespace, log: LogApi, state: ShardState, wanted: _Wanted) -> int:
    if args.offset is not None:
        return max(state.start, int(args.offset))
    if args.since is not None:
        return log.find(state.shard, args.since.ns(log.now_ns()))
    if wanted.is_all:
        return max(state.start, state.end - int(args.count))
    return _newest(log, state, wanted, int(args.count))


def _newest(log: LogApi, state: ShardState, wanted: _Wanted, count: int) -> int:
    """The offset from which on a shard has ``count`` chosen events.  Reads backwards, in growing portions."""
    found: list[int] = []
    high, size = state.end, 1024
    while high > state.start and len(found) < count:
        low = offset = max(state.start, high - size)
        part: list[int] = []
        while offset < high and (frames := log.read(state.shard, offset)):
            part += [record["offset"] for one in frames for record, _ in wanted.records(one, low)]
            offset = frames[-1].end
        found = [offset for offset in part if offset < high] + found
        high, size = low, size * 2
    return found[-count:][0] if found else state.end
