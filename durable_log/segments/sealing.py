"""Sealing: the oldest hot frames of a shard become a Parquet segment.

Theory of operation.  Each step leaves the log whole, so a process may die after any of them::

    lock      one process at a time seals, compacts and cleans in a directory of segments, which must be the log's own,
              and must have been changed last by this store and not by a copy of it
    write     a file with a temporary name, synced to disk   died here: an orphan with a temporary name
    commit    manifest entry in, hot frames out: one transaction of the store
    publish   the file gets its name, synced to disk         died here: the next reader of the file does it

Before the commit readers find the events hot, after it in the file, never in neither.  So a file that has its name was
committed once, and only what retention has dropped, or compaction has replaced, is removed.  What is merely not in the
manifest is not: the manifest may be the one that is wrong.  Orphans have temporary names and are removed when they are
old.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from durable_log import config
from durable_log.errors import LogCorrupt
from durable_log.log_api import Segment, StoredFrame
from durable_log.segments import columns
from durable_log.segments.directory import MARK, directory_lock, published, write_mark
from durable_log.segments.files import ROW_GROUP_BYTES, ROW_GROUP_EVENTS, discard, encode_lost, publish, write_segment
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.errors import FrameError

if TYPE_CHECKING:
    import pyarrow

LOG = logging.getLogger(__name__)

OnStep = Callable[[str], None]

STAGED_AGE_S = 3600.0
"""Age of a temporary file of a dead attempt at which it is removed.  Long: whoever restored an older store and finds
something missing may still want to look at it."""


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
        """Hold the lock of the directory of segments.  Raises LogUnavailable when another process has it, and
        SegmentsRefused when the directory is not the log's own."""
        log = self._log
        with directory_lock(log.directory):
            log.check_directory()
            if not (log.directory / MARK).exists():
                write_mark(log.directory, log.lineage, log.shards, log.directory_token())
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
            self._log.directory, self._log.maker, shard, first, batches,
            end=lambda: portions.end, lost=lambda: encode_lost(portions.lost),
        )  # fmt: skip
        self._on_step("write")
        self.note_change()
        if not self._log.add_segment(shard, first, segment.end, self._log.encode_entry(segment)):
            discard(segment)  # the shard was trimmed beyond it meanwhile
            return None
        self.given_up += sum(end - first for first, end in portions.lost)
        self._on_step("commit")
        publish(segment)
        self._on_step("publish")
        return segment

    def clean(self) -> list[pathlib.Path]:
        """Finish what died processes have left: give committed files their names, and remove what drops and compaction
        had named and not yet removed, and temporary files that are old.  Returns what was removed.  Holds the lock."""
        log, removed = self._log, list[pathlib.Path]()
        with self.lock():
            listed = log.segments()
            for segment in listed:
                if not pathlib.Path(segment.path).exists():
                    publish(segment)
            starts = {state.shard: state.start for state in log.state()}
            replaced = {(segment.shard, segment.replaces) for segment in listed}
            for shard, name, path in published(log.directory):
                is_dropped = log.lineage.owns(name.log) and name.end <= starts.get(shard, 0)
                if is_dropped or (shard, path.name) in replaced:
                    removed.append(path)
            removed += _old_staged(log.directory)
            if removed:
                self.note_change()
            for path in removed:
                path.unlink(missing_ok=True)
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


def _old_staged(directory: pathlib.Path) -> list[pathlib.Path]:
    """Temporary files that no process can be writing any more, and that are not committed: those have their names
    now."""
    before = time.time() - STAGED_AGE_S
    return [path for path in directory.glob("[0-9]*/.*.tmp") if path.stat().st_mtime < before]


def _to_batch(frames: list[StoredFrame]) -> pyarrow.RecordBatch:
    try:
        return columns.events_batch(frames, with_frames=True)
    except FrameError as error:
        where = f"shard {frames[0].shard}, offsets {frames[0].offset} to {frames[-1].end}"
        raise LogCorrupt(f"{where}: a frame in the store is damaged: {error}") from error
