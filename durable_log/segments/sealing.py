"""Sealing: the oldest hot frames of a shard become a Parquet segment.

Theory of operation.  Each step leaves the log whole, so a process may die after any of them::

    lock      one process at a time seals, compacts and cleans where the segments are: a place that must be the log's
              own, and must have been changed last by this store and not by a copy of it
    write     a file with a temporary name, or an object, durable and checked     died here: an orphan
    commit    manifest entry in, hot frames out: one transaction of the store, refused when the lock was lost
    publish   the file gets its name, the object its mark                         died here: the next cleaning does it

Before the commit readers find the events hot, after it in the segment, never in neither.  So a segment that is
published was committed once, and only what retention has dropped, or compaction has replaced, is removed.  What is
merely not in the manifest is not: the manifest may be the one that is wrong.  Orphans are not published, and are
removed when they are old.  A commit whose outcome is not known leaves the segment where it is: the next cleaning finds
it in the manifest and publishes it, or does not.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from durable_log import config
from durable_log.errors import LeaseLost, LogCorrupt
from durable_log.log_api import Segment, StoredFrame
from durable_log.segments import columns
from durable_log.segments.files import ROW_GROUP_BYTES, ROW_GROUP_EVENTS, SegmentEnding, encode_lost, write_segment
from durable_log.segments.ownership import stored_mark, write_mark
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.errors import FrameError

if TYPE_CHECKING:
    import pyarrow

LOG = logging.getLogger(__name__)

OnStep = Callable[[str], None]

STAGED_AGE_S = 3600.0
"""Age of a temporary file of a dead attempt at which it is removed.  Long: an operator who restored an older store and
finds something missing may still want to look at it."""


class Sealer:
    """Seals shards of one log.  ``on_step`` is told the name of each step when it is done."""

    def __init__(self, log: SegmentedLog, *, on_step: OnStep = lambda _: None) -> None:
        columns.import_pyarrow()
        self._log = log
        self._on_step = on_step
        self.given_up = 0
        """Offsets of damaged frames that were left out."""
        self._has_noted = False
        self._events_max = config.segment_events(log.conf)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the place of segments.  Raises LogUnavailable when another process has it, and
        SegmentsRefused when the place is not the log's own."""
        log, store = self._log, self._log.segment_store
        with store.lock(log):
            log.check_place()
            mark, version = stored_mark(store)
            if mark is None:
                write_mark(store, log.lineage, log.shards, version, log.directory_token())
            self._has_noted = False
            yield

    def note_change(self) -> None:
        """Call it with the lock held, before the manifest or a published file is changed."""
        if not self._has_noted:
            self._log.note_change()
            self._has_noted = True

    def seal(self, shard: int, before: int | None = None, *, gives_up: bool = False) -> list[Segment]:
        """Seal what a shard has before an offset, or all it has: whole frames, as many segments as needed.

        Stops before a frame that is damaged, and raises LogCorrupt; ``gives_up`` leaves it out instead, counted in
        ``given_up``: its offsets are a hole then.  Holds the lock.  Raises LogUnavailable when another process has it,
        SegmentsRefused when the directory is not the log's own.
        """
        made: list[Segment] = []
        with self.lock():
            limit = self._log.state()[shard].end if before is None else before
            while (segment := self._seal_one(shard, limit, gives_up=gives_up)) is not None:
                made.append(segment)
        return made

    def _seal_one(self, shard: int, limit: int, *, gives_up: bool) -> Segment | None:
        first = self._log.state()[shard].sealed
        self._on_step("lock")
        portions = _Portions(self._log, shard, first, limit, events_max=self._events_max, gives_up=gives_up)
        opening = next(portions, None)
        if opening is None and portions.end == first:
            return None
        batches = map(_to_batch, itertools.chain([] if opening is None else [opening], portions))
        segment = write_segment(
            self._log.segment_store, self._log.maker, shard, first, batches,
            lambda: SegmentEnding(portions.end, encode_lost(portions.lost)),
        )  # fmt: skip
        self._on_step("write")
        if not self.commit(segment, self._log.add_segment, shard, first, segment.end):
            return None  # the shard was trimmed beyond it meanwhile
        self.given_up += sum(end - first for first, end in portions.lost)
        self._on_step("commit")
        self._log.segment_store.publish(segment)
        self._on_step("publish")
        return segment

    def commit(self, segment: Segment, change: Callable[..., bool], *arguments: object) -> bool:
        """Change the manifest to have a segment that was written; False when the change was refused.  A segment that
        is certainly not in the manifest is removed.  Raises LeaseLost, LogUnavailable."""
        store = self._log.segment_store
        try:
            self.note_change()
            is_done = change(*arguments, self._log.encode_entry(segment), store.fence())
        except LeaseLost:
            store.discard(segment)
            raise
        if not is_done:
            store.discard(segment)
        return is_done

    def clean(self) -> list[str]:
        """Finish what died processes have left: publish what is committed, and remove what drops and compaction had
        named and not yet removed, and orphans that are old.  Returns what was removed.  Holds the lock."""
        log, store, removed = self._log, self._log.segment_store, list[str]()
        with self.lock():
            listed = {segment.path: segment for segment in log.segments()}
            for found in store.unpublished():
                if found.path in listed:
                    store.publish(listed[found.path])
            starts = {state.shard: state.start for state in log.state()}
            replaced = {(segment.shard, segment.replaces) for segment in listed.values()}
            for shard, name, path in store.published():
                is_dropped = log.lineage.owns(name.log) and name.end <= starts.get(shard, 0)
                if is_dropped or (shard, str(name)) in replaced:
                    removed.append(path)
            removed += [path for path in store.orphans(STAGED_AGE_S) if path not in listed]
            if removed:
                self.note_change()
            for path in removed:
                store.delete(path)
        return removed


class _Portions(Iterator[list[StoredFrame]]):
    """Hot frames that end by the limit, a row group at a time, up to the size of a segment, or up to a damaged one."""

    def __init__(
        self, log: SegmentedLog, shard: int, first: int, limit: int, *, events_max: int, gives_up: bool
    ) -> None:
        self.end = first
        """Where what was taken so far ends."""
        self.lost: list[tuple[int, int]] = []
        """Offsets of damaged frames that were left out."""
        self._log = log
        self._shard = shard
        self._limit = limit
        self._first = first
        self._last = first + events_max
        self._gives_up = gives_up

    def __next__(self) -> list[StoredFrame]:
        while self.end < min(self._limit, self._last):
            try:
                return self._take()
            except LogCorrupt as error:
                if error.end is None or (not self._gives_up and self.end == self._first):
                    raise
                if not self._gives_up:
                    break  # what is before it makes a segment; the next one begins with it, and raises
                LOG.error("Given up: %s", error)
                self.lost.append((self.end, error.end))
                self.end = error.end
        raise StopIteration

    def _take(self) -> list[StoredFrame]:
        events_max = min(ROW_GROUP_EVENTS, self._last - self.end)  # the rest would be read again for the next
        _, found = self._log.hot_read(self._shard, self.end, events_max=events_max, bytes_max=ROW_GROUP_BYTES)
        frames = [one for one in found if one.end <= self._limit and (one.end <= self._last or one.offset == self.end)]
        if not frames or frames[0].offset != self.end:
            raise StopIteration
        self.end = frames[-1].end
        return frames


def _to_batch(frames: list[StoredFrame]) -> pyarrow.RecordBatch:
    try:
        return columns.events_batch(frames, with_frames=True)
    except FrameError as error:
        where = f"shard {frames[0].shard}, offsets {frames[0].offset} to {frames[-1].end}"
        raise LogCorrupt(f"{where}: a frame in the store is damaged: {error}") from error
