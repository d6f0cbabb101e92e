"""Compaction: of the sealed events of a topic, only the newest of each object stays.

It is for topics that say what is, not what happened: ``[log] compact_topics`` names them.  An event goes when another
one of its object has at least its version *and* was sent after it: it has a higher number in the same stream, or, in
another stream, a later timestamp.  Neither alone would do.  An event that was published late, or repaired late, has a
lower version than what came before it; and the versions of a database that was made anew begin again, so its events
have lower versions than older ones of the database before it.  Where the two contradict each other both events stay,
and readers see what they would have seen without compaction.

A delete is kept for ``compact_tombstone_age``, so that a reader that was away learns of it, and longer while another
event of its object is kept, be it that the two contradict each other, that it is in a frame that stays whole, or that
it is not sealed yet.  Segments are written anew one after the other, and a process may die between two of them: so it
is kept, too, while something of its object is in a later segment.

Offsets stay what they were; they are no longer dense, and a reader passes over what is gone.  Each part that is left of
a frame becomes a frame of its own, which follows the part before it as if the numbers between had been skipped on
purpose.  Where whole frames went, their numbers are missing to a subscriber that asks for them.  Frames that are
signed stay whole, because only their publisher could sign a part; so do frames that cannot be decoded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from durable_log import config
from durable_log.log_api import Segment
from durable_log.segments.columns import EVENT_COLUMNS, FRAME_COLUMNS, events_of_frame, import_pyarrow
from durable_log.segments.files import discard, publish, write_segment
from durable_log.segments.sealing import OnStep, Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.frame import Flag
from pubsub_api.core.topics import FilterSet

if TYPE_CHECKING:
    import pyarrow

LOG = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000
_NEVER_NS = 1 << 62
_ALWAYS = 1 << 62
_RANK = ("topic", "table", "key", "frame_flags", "guid", "seq", "version", "timestamp", "offset")

_Object = tuple[str, str, str]


class _Rank(NamedTuple):
    """What decides whether an event is older than another one of its object."""

    guid: bytes
    seq: int
    version: int
    timestamp: int
    offset: int

    def is_older(self, other: _Rank) -> bool:
        if self.version > other.version:
            return False
        if self.guid == other.guid:
            return self.seq < other.seq
        return (self.timestamp, self.offset) < (other.timestamp, other.offset)


@dataclasses.dataclass(slots=True)
class _Found:
    """What the segments have of an object."""

    ranks: list[_Rank] = dataclasses.field(default_factory=list)
    """Its events of which none is older than another; nearly always one."""
    last: int = 0
    """The last offset of any of its events, `_ALWAYS` when one is in a frame that stays whole."""


@dataclasses.dataclass(frozen=True)
class CompactionReport:
    segments: int
    """Segments written anew."""
    removed: int
    """Events removed."""
    objects: int
    """Objects of which the newest event stays."""


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
        self._objects_max: int = config.COMPACT_OBJECTS_MAX
        self._done: dict[int, tuple[str, int]] = {}
        """Shard -> its newest segment when nothing more could be removed, and when a delete of it is old enough."""

    def compact(self, shard: int, now_ns: int) -> CompactionReport:
        """Compact a shard as far as it is sealed.  Reads it twice; does nothing when since the last time nothing was
        sealed and no delete has come of age.

        Gives up, with a warning, when the topics have more objects than `config.COMPACT_OBJECTS_MAX`.
        """
        with self._sealer.lock():
            segments = self._log.segments(shard)
            path, due_ns = self._done.get(shard, ("", 0))
            if not segments or (path == segments[-1].path and now_ns < due_ns):
                return CompactionReport(0, 0, 0)
            newest = self._newest(segments)
            if newest is None:
                return CompactionReport(0, 0, 0)
            kept = {
                rank.offset: found.last if len(found.ranks) == 1 else _ALWAYS
                for found in newest.values()
                for rank in found.ranks
            }
            hot = functools.cache(lambda: self._hot_objects(shard))
            choice = _Choice(self._filters, kept, now_ns - self._tombstone_age_ns, hot)
            removed = [self._rewrite(segment, choice) for segment in segments]
            due_ns = choice.oldest_delete_ns + self._tombstone_age_ns
            self._done[shard] = (self._log.segments(shard)[-1].path, due_ns)
            return CompactionReport(sum(map(bool, removed)), sum(removed), len(newest))

    def _newest(self, segments: list[Segment]) -> dict[_Object, _Found] | None:
        """None when there are too many objects."""
        newest: dict[_Object, _Found] = {}
        guids: dict[bytes, bytes] = {}
        for segment in segments:
            for batch in self._log.segment_reader.batches(segment, segment.first, segment.end, _RANK):
                rows = zip(*(batch.column(name).to_pylist() for name in _RANK), strict=True)
                frame_flags = 0
                for topic, table, key, flags, guid, *numbers in rows:
                    frame_flags = frame_flags if flags is None else flags  # the first row of a frame has them
                    if table is None or not self._filters.match(topic):
                        continue
                    rank = _Rank(guids.setdefault(guid, guid), *numbers)
                    found = newest.setdefault((topic, table, key), _Found())
                    found.last = max(found.last, _ALWAYS if frame_flags & Flag.SIGNED else rank.offset)
                    if not any(rank.is_older(one) for one in found.ranks):
                        found.ranks[:] = [one for one in found.ranks if not one.is_older(rank)]
                        found.ranks.append(rank)
            if len(newest) > self._objects_max:
                LOG.warning("Shard %d is not compacted: it has more than %d objects", segment.shard, self._objects_max)
                return None
        return newest

    def _hot_objects(self, shard: int) -> set[_Object]:
        """Objects that have events which are not sealed yet.  Raises LogCorrupt."""
        found: set[_Object] = set()
        offset = self._log.state()[shard].sealed
        while frames := self._log.hot_read(shard, offset, events_max=10_000, bytes_max=16 << 20).frames:
            for stored in frames:
                topic = stored.header().topic
                if self._filters.match(topic):
                    with contextlib.suppress(UndecodableBody):
                        found |= {(topic, event.table, event.key) for event in stored.events()}
            offset = frames[-1].end
        return found

    def _rewrite(self, segment: Segment, choice: _Choice) -> int:
        """Write a segment without what is not kept; returns how many events went."""
        choice.segment_end = segment.end
        tables = [choice.keep(table) for table in self._groups(segment)]
        left: int = sum(table.num_rows for table in tables)
        if left == segment.rows:
            return 0
        batches = (batch for table in tables for batch in table.combine_chunks().to_batches() if batch.num_rows)
        written = write_segment(
            self._log.directory, self._log.maker, segment.shard, segment.first, batches,
            end=lambda: segment.end, lost=lambda: segment.lost,
        )  # fmt: skip
        self._on_step("write")
        self._sealer.note_change()
        compacted = written._replace(appended_ns_max=segment.appended_ns_max, replaces=pathlib.Path(segment.path).name)
        old = [self._log.encode_entry(segment)]
        span = (segment.first, segment.end)
        if not self._log.replace_segments(segment.shard, span, old, self._log.encode_entry(compacted)):
            discard(compacted)  # it was trimmed meanwhile
            return 0
        self._on_step("commit")
        publish(compacted)
        self._on_step("publish")
        self._log.remove_files([segment])
        return segment.rows - left

    def _groups(self, segment: Segment) -> Iterator[pyarrow.Table]:
        arrow = import_pyarrow()
        names = [*EVENT_COLUMNS, *FRAME_COLUMNS]
        for batch in self._log.segment_reader.batches(segment, segment.first, segment.end, names):
            yield arrow.Table.from_batches([batch])


class _Choice:
    """Which rows stay, and how they stand in frames made anew."""

    def __init__(
        self, filters: FilterSet, kept: Mapping[int, int], expired_ns: int, hot: Callable[[], set[_Object]]
    ) -> None:
        """``kept`` are the offsets that stay, each with the last offset that anything of its object has, `_ALWAYS` when
        something else of it stays.  ``hot`` is called when it matters."""
        self._filters = filters
        self._kept = kept
        self._expired_ns = expired_ns
        self._hot = hot
        self.segment_end = 0
        """Of the segment that is looked at."""
        self.oldest_delete_ns = _NEVER_NS
        """When the oldest delete was appended that stays because it is young, or only this time."""

    def keep(self, table: pyarrow.Table) -> pyarrow.Table:
        arrow = import_pyarrow()
        columns: dict[str, list[Any]] = table.to_pydict()
        rows: list[int] = []
        boundaries: list[dict[str, Any]] = []
        start, total = 0, table.num_rows
        while start < total:
            end = start + columns["frame_count"][start]
            if self._is_compacted(columns, start):
                wanted = [row for row in range(start, end) if self._stays(columns, row)]
                boundaries += _reframe(columns, start, wanted)
            else:
                wanted = list(range(start, end))
                boundaries += [{name: columns[name][row] for name in FRAME_COLUMNS} for row in wanted]
            rows += wanted
            start = end
        left = table.take(arrow.array(rows, arrow.int64()))
        for name in FRAME_COLUMNS:
            field = table.schema.field(name)
            values = arrow.array([boundary[name] for boundary in boundaries], field.type)
            left = left.set_column(table.schema.get_field_index(name), field, values)
        return left

    def _is_compacted(self, columns: dict[str, list[Any]], row: int) -> bool:
        is_untouchable = columns["table"][row] is None or columns["frame_flags"][row] & Flag.SIGNED
        return not is_untouchable and self._filters.match(columns["topic"][row])

    def _stays(self, columns: dict[str, list[Any]], row: int) -> bool:
        last = self._kept.get(columns["offset"][row])
        if last is None:
            return False
        if columns["action"][row] != "delete" or last == _ALWAYS:
            return True
        appended_ns: int = columns["appended_ns"][row]
        if appended_ns < self._expired_ns and last < self.segment_end:
            return (columns["topic"][row], columns["table"][row], columns["key"][row]) in self._hot()
        self.oldest_delete_ns = min(self.oldest_delete_ns, appended_ns)
        return True


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
