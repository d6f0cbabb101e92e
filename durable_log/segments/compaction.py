"""Compaction: of the sealed events of a topic, only the newest of each object stays.

It is for topics that say what is, not what happened: ``[log] compact_topics`` names them.  An event goes when another
one of its object has at least its version *and* was sent after it: it has a higher number in the same stream, or, in
another stream, a later timestamp.  Neither alone would do.  An event that was published late, or repaired late, has a
lower version than what came before it; and the versions of a database that was made anew begin again, so its events
have lower versions than older ones of the database before it.  Where the two contradict each other both events stay,
and readers see what they would have seen without compaction.

A delete is kept for ``compact_tombstone_age``, so that a reader that was away learns of it, and longer while another
event of its object is kept, be it that the two contradict each other, that it is in a frame that stays whole, or that
it is not sealed yet. In a shard that the log was given later it stays as long as the shard that had the topic before
has anything from that time: compaction looks at one shard at a time. Segments are written anew one after the other, and
a process may die between two of them: so it is kept, too, while something of its object is in a later segment.

Offsets stay what they were; they are no longer dense, and a reader passes over what is gone.  Each part that is left of
a frame becomes a frame of its own, which follows the part before it as if the numbers between had been skipped on
purpose.  Where whole frames went, their numbers are missing to a subscriber that asks for them.  Frames that are
signed stay whole, because only their publisher could sign a part; so do frames that cannot be decoded.

Which events stay is found by `durable_log.segments.newest_events`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from durable_log import config
from durable_log.core.dropped_ranges import DroppedRange, bounded
from durable_log.log_api import Segment
from durable_log.segments.columns import EVENT_COLUMNS, FRAME_COLUMNS, events_of_frame, import_pyarrow
from durable_log.segments.files import SegmentEnding, write_segment
from durable_log.segments.newest_events import Object, OffsetBits, find_kept
from durable_log.segments.sealing import OnStep, Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.topics import FilterSet

if TYPE_CHECKING:
    import pyarrow

_SECOND_NS = 1_000_000_000

SMALL_EVENTS = 1_000_000
"""A shard with so many sealed events is compacted as a whole whenever something was sealed: that takes seconds."""


@dataclasses.dataclass(frozen=True)
class CompactionReport:
    segments: int
    """Segments written anew."""
    removed: int
    """Events removed."""
    objects: int
    """Objects of which the newest event stays."""


@dataclasses.dataclass(frozen=True)
class _Done:
    """Where compaction of a shard stands."""

    end: int
    """Where the last segment ended."""
    oldest_delete_ns: int
    """When the oldest delete was appended that stays because it is young."""
    whole_ns: int
    """When it was compacted as a whole."""


class SegmentCompactor:
    """Compacts the sealed part of shards.  Takes the sealer's lock.  ``on_step`` is told the name of each step when it
    is done."""

    def __init__(self, log: SegmentedLog, sealer: Sealer, *, on_step: OnStep = lambda _: None) -> None:
        self._log = log
        self._on_step = on_step
        self._sealer = sealer
        options = log.conf[config.GROUP]
        self._filters = FilterSet(options.compact_topics)
        self._tombstone_age_ns = int(options.compact_tombstone_age * _SECOND_NS)
        self._done: dict[int, _Done] = {}

    def compact(self, shard: int, now_ns: int) -> CompactionReport:
        """Compact a shard as far as it is sealed, or the newest part of it.  Does nothing when since the last time
        nothing was sealed and no delete has come of age."""
        with self._sealer.lock():
            segments = self._log.segments(shard)
            done = self._done.get(shard)
            chosen = self._choose(segments, done, now_ns)
            if not chosen:
                return CompactionReport(0, 0, 0)
            is_whole = len(chosen) == len(segments)
            has_older = is_whole and self._has_older(shard)
            kept = find_kept(
                self._log.segment_reader, chosen, self._filters,
                expired_ns=now_ns - self._tombstone_age_ns if is_whole and not has_older else 0,
                hot=functools.cache(lambda: self._hot_objects(shard)),
            )  # fmt: skip
            removed = [self._rewrite(segment, kept.offsets) for segment in chosen]
            if done is None or is_whole:
                self._done[shard] = _Done(segments[-1].end, now_ns if has_older else kept.oldest_delete_ns, now_ns)
            else:
                oldest_ns = min(done.oldest_delete_ns, kept.oldest_delete_ns)
                self._done[shard] = _Done(segments[-1].end, oldest_ns, done.whole_ns)
            return CompactionReport(sum(map(bool, removed)), sum(removed), kept.objects)

    def _choose(self, segments: list[Segment], done: _Done | None, now_ns: int) -> list[Segment]:
        """What is to be compacted, up to the newest segment.

        Of a large shard, what was sealed since the last time, and as much of what is before it as was sealed: so a
        segment is read again when the shard has grown by as much as it holds, and not each time.  A delete may go only
        when all is looked at, and then others of its age are waited for.
        """
        if not segments or done is None:
            return segments
        chosen = [segment for segment in segments if segment.end > done.end]
        is_small = sum(segment.rows for segment in segments) <= SMALL_EVENTS
        pause_ns = 0 if is_small else self._tombstone_age_ns // 10
        if now_ns >= max(done.oldest_delete_ns + self._tombstone_age_ns, done.whole_ns + pause_ns):
            return segments
        if is_small or not chosen:
            return segments if chosen else []
        rows = sum(segment.rows for segment in chosen)
        for segment in reversed(segments[: -len(chosen)]):
            if segment.rows > rows:
                break
            chosen.insert(0, segment)
            rows += segment.rows
        return chosen

    def _has_older(self, shard: int) -> bool:
        """Whether a shard from which this one has taken topics over may still have events of their objects: then a
        delete must stay, or a reader of both would see the object come back."""
        states = self._log.state()
        return any(states[parent].start < offset for parent, offset in states[shard].after)

    def _hot_objects(self, shard: int) -> set[Object]:
        """Objects that have events which are not sealed yet.  Raises LogCorrupt."""
        found: set[Object] = set()
        offset = self._log.state()[shard].sealed
        while frames := self._log.hot_read(shard, offset, events_max=10_000, bytes_max=16 << 20).frames:
            for stored in frames:
                topic = stored.header().topic
                if self._filters.match(topic):
                    with contextlib.suppress(UndecodableBody):
                        found |= {(topic, event.table, event.key) for event in stored.events()}
            offset = frames[-1].end
        return found

    def _rewrite(self, segment: Segment, kept: OffsetBits) -> int:
        """Write a segment without what is not kept; returns how many events went."""
        if kept.count(segment.first, segment.end) == segment.rows:
            return 0
        return self.write_anew(segment, (_keep(table, kept) for table in self.row_groups(segment)))

    def write_anew(
        self,
        segment: Segment,
        tables: Iterable[pyarrow.Table],
        dropped: Callable[[], tuple[DroppedRange, ...]] = tuple,
    ) -> int:
        """Put these rows in the place of a segment's; returns how many events went.  ``dropped()``, asked when all are
        read, is what went because of its age.  Call it with the sealer's lock held."""
        batches = (batch for table in tables for batch in table.combine_chunks().to_batches() if batch.num_rows)
        written = write_segment(
            self._log.segment_store, self._log.maker, segment.shard, segment.first, batches,
            lambda: SegmentEnding(segment.end, segment.lost, bounded((*segment.dropped, *dropped()))),
        )  # fmt: skip
        self._on_step("write")
        compacted = written._replace(appended_ns_max=segment.appended_ns_max, replaces=pathlib.Path(segment.path).name)
        old = [self._log.encode_entry(segment)]
        span = (segment.first, segment.end)
        if not self._sealer.commit(compacted, self._log.replace_segments, segment.shard, span, old):
            return 0  # it was trimmed meanwhile
        self._on_step("commit")
        self._log.segment_store.publish(compacted)
        self._on_step("publish")
        self._log.remove_files([segment])
        return segment.rows - compacted.rows

    def row_groups(self, segment: Segment) -> Iterator[pyarrow.Table]:
        """All columns of a segment."""
        arrow = import_pyarrow()
        names = [*EVENT_COLUMNS, *FRAME_COLUMNS]
        for batch in self._log.segment_reader.batches(segment, segment.first, segment.end, names):
            yield arrow.Table.from_batches([batch])


def _keep(table: pyarrow.Table, kept: OffsetBits) -> pyarrow.Table:
    """The rows that stay, and how they stand in frames made anew."""
    arrow = import_pyarrow()
    columns: dict[str, list[Any]] = table.select([*FRAME_COLUMNS, "offset", "seq"]).to_pydict()
    rows: list[int] = []
    boundaries: list[dict[str, Any]] = []
    start = 0
    while start < table.num_rows:
        end = start + columns["frame_count"][start]
        wanted = [row for row in range(start, end) if columns["offset"][row] in kept]
        if len(wanted) < end - start:
            boundaries += _reframe(columns, start, wanted)
        else:
            boundaries += [{name: columns[name][row] for name in FRAME_COLUMNS} for row in wanted]
        rows += wanted
        start = end
    left = table.take(arrow.array(rows, arrow.int64()))
    for name in FRAME_COLUMNS:
        field = table.schema.field(name)
        values = arrow.array([boundary[name] for boundary in boundaries], field.type)
        left = left.set_column(table.schema.get_field_index(name), field, values)
    return left


def _reframe(columns: dict[str, list[Any]], start: int, rows: list[int]) -> list[dict[str, Any]]:
    """The frame columns of the rows that stay of a frame: each run of neighbours becomes a frame."""
    empty: dict[str, Any] = dict.fromkeys(FRAME_COLUMNS)
    opening = {name: columns[name][start] for name in ("frame_timestamp", "frame_flags")}
    boundaries: list[dict[str, Any]] = []
    after = columns["frame_after"][start]
    original = columns["frame"][start]
    for run in _runs(rows):
        part = None if original is None else events_of_frame(original, columns["seq"][run[0]], len(run), after=after)
        boundaries.append(empty | opening | {"frame_count": len(run), "frame_after": after, "frame": part})
        boundaries += [empty] * (len(run) - 1)
        after = columns["seq"][run[-1]]
    return boundaries


def _runs(rows: list[int]) -> Iterator[list[int]]:
    """Split rising numbers where they jump."""
    run: list[int] = []
    for row in rows:
        if run and row != run[-1] + 1:
            yield run
            run = []
        run.append(row)
    if run:
        yield run
