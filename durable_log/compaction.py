"""Compaction: of the sealed events of a topic, only the newest of each object stays.

It is for topics that say what is, not what happened: ``[log] compact_topics`` names them.  Newest is the highest
version, then timestamp, then offset, so that an event which was repaired late does not win over what came after it.  A
delete is kept for ``compact_tombstone_age``, so that whoever was away learns of it.

Offsets stay what they were; they are no longer dense, and a reader passes over what is gone.  Each part that is left of
a frame becomes a frame of its own, which follows the part before it as if the numbers between had been skipped on
purpose.  Where whole frames went, their numbers are missing to whoever asks for them: they are gone.  Frames that are
signed stay whole, because nobody but their publisher could sign a part; so do frames that cannot be decoded.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from durable_log import config
from durable_log.columns import EVENT_COLUMNS, FRAME_COLUMNS, import_pyarrow
from durable_log.log_api import Segment
from durable_log.sealing import Sealer
from durable_log.segmented import SegmentedLog
from durable_log.segments import publish, write_segment
from pubsub_api.core.frame import Flag
from pubsub_api.core.topics import FilterSet

if TYPE_CHECKING:
    import pyarrow

LOG = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000
_RANK = ("topic", "table", "key", "version", "timestamp", "offset")

_Object = tuple[str, str, str]
_Rank = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class CompactionReport:
    segments: int
    """Segments written anew."""
    removed: int
    """Events removed."""
    objects: int
    """Objects of which the newest event stays."""


class Compactor:
    """Compacts the sealed part of shards.  Takes the sealer's lock."""

    def __init__(self, log: SegmentedLog, sealer: Sealer) -> None:
        self._log = log
        self._sealer = sealer
        options = log.conf[config.GROUP]
        self._filters = FilterSet(options.compact_topics)
        self._tombstone_age_ns = int(options.compact_tombstone_age * _SECOND_NS)
        self._objects_max: int = options.compact_objects_max
        self._done: dict[int, str] = {}
        """Shard -> its newest segment when nothing more could be removed."""

    def compact(self, shard: int, now_ns: int) -> CompactionReport:
        """Compact a shard as far as it is sealed.  Reads it twice; does nothing when nothing was sealed since.

        Gives up, with a warning, when the topics have more objects than ``compact_objects_max``.
        """
        with self._sealer.lock():
            segments = self._log.segments(shard)
            if not segments or self._done.get(shard) == segments[-1].path:
                return CompactionReport(0, 0, 0)
            newest = self._newest(segments)
            if newest is None:
                return CompactionReport(0, 0, 0)
            kept = {rank[2] for rank in newest.values()}
            choice = _Choice(self._filters, kept, now_ns - self._tombstone_age_ns)
            removed = [self._rewrite(segment, choice) for segment in segments]
            self._done[shard] = self._log.segments(shard)[-1].path
            return CompactionReport(sum(map(bool, removed)), sum(removed), len(newest))

    def _newest(self, segments: list[Segment]) -> dict[_Object, _Rank] | None:
        """Object -> version, timestamp and offset of its newest event.  None when there are too many."""
        newest: dict[_Object, _Rank] = {}
        for segment in segments:
            for batch in self._log.segment_reader.batches(segment, segment.first, segment.end, _RANK):
                rows = zip(*(batch.column(name).to_pylist() for name in _RANK), strict=True)
                for topic, table, key, *rank in rows:
                    if table is None or not self._filters.match(topic):
                        continue
                    name, place = (topic, table, key), (rank[0], rank[1], rank[2])
                    if newest.get(name, place) <= place:
                        newest[name] = place
            if len(newest) > self._objects_max:
                LOG.warning("Shard %d is not compacted: [log] compact_objects_max is reached", segment.shard)
                return None
        return newest

    def _rewrite(self, segment: Segment, choice: _Choice) -> int:
        """Write a segment without what is not kept; returns how many events went."""
        tables = [choice.keep(table) for table in self._groups(segment)]
        left: int = sum(table.num_rows for table in tables)
        if left == segment.rows:
            return 0
        batches = (batch for table in tables for batch in table.combine_chunks().to_batches() if batch.num_rows)
        written = write_segment(self._log.directory, segment.shard, segment.first, batches)
        compacted = publish(written._replace(end=segment.end, appended_ns_max=segment.appended_ns_max))
        old = [self._log.encode_entry(segment)]
        span = (segment.first, segment.end)
        if not self._log.replace_segments(segment.shard, span, old, self._log.encode_entry(compacted)):
            self._log.remove_files([compacted])  # it was trimmed meanwhile
            return 0
        self._log.remove_files([segment])
        return segment.rows - left

    def _groups(self, segment: Segment) -> Iterator[pyarrow.Table]:
        arrow = import_pyarrow()
        names = [*EVENT_COLUMNS, *FRAME_COLUMNS]
        for batch in self._log.segment_reader.batches(segment, segment.first, segment.end, names):
            yield arrow.Table.from_batches([batch])


class _Choice:
    """Which rows stay, and how they stand in frames made anew."""

    def __init__(self, filters: FilterSet, kept: set[int], expired_ns: int) -> None:
        self._filters = filters
        self._kept = kept
        self._expired_ns = expired_ns

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
        if columns["offset"][row] not in self._kept:
            return False
        return columns["action"][row] != "delete" or bool(columns["appended_ns"][row] >= self._expired_ns)


def _reframe(columns: dict[str, list[Any]], start: int, rows: list[int]) -> list[dict[str, Any]]:
    """The frame columns of the rows that stay of a frame: each run of neighbours becomes a frame."""
    empty: dict[str, Any] = dict.fromkeys(FRAME_COLUMNS)
    opening = {name: columns[name][start] for name in ("frame_timestamp", "frame_flags")}
    boundaries: list[dict[str, Any]] = []
    after = columns["frame_after"][start]
    for run in _runs(rows):
        boundaries.append(empty | opening | {"frame_count": len(run), "frame_after": after})
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
