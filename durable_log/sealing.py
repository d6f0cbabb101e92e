"""Sealing: the oldest hot frames of a shard become a Parquet segment.

Theory of operation.  Each step leaves the log whole, so a process may die after any of them::

    lock      one process at a time seals, compacts and cleans in a directory of segments
    write     a temporary file, synced to disk               died here: an orphan with a temporary name
    publish   the file gets its name, synced to disk         died here: an orphan with a proper name
    commit    manifest entry in, hot frames out: one transaction of the store

Before the commit readers find the events hot, after it in the file, never in neither.  Orphans are removed by the next
who holds the lock: what has the lock's protection and is not in the manifest belongs to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from durable_log import columns, config
from durable_log.errors import LogCorrupt, LogUnavailable
from durable_log.log_api import Segment, StoredFrame
from durable_log.segmented import SegmentedLog
from durable_log.segments import ROW_GROUP_BYTES, ROW_GROUP_EVENTS, publish, write_segment
from pubsub_api.errors import FrameError

if TYPE_CHECKING:
    import pyarrow

OnStep = Callable[[str], None]


class Sealer:
    """Seals shards of one log.  ``on_step`` is told the name of each step when it is done."""

    def __init__(self, log: SegmentedLog, *, on_step: OnStep = lambda _: None) -> None:
        columns.import_pyarrow()
        self._log = log
        self._on_step = on_step
        self._events_max: int = log.conf[config.GROUP].segment_events

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the directory of segments.  Raises LogUnavailable when another process has it."""
        directory = self._log.directory
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise LogUnavailable(f"another process seals or compacts in {directory} now") from error
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
            os.close(descriptor)

    def seal(self, shard: int, before: int | None = None) -> list[Segment]:
        """Seal what a shard has before an offset, or all it has: whole frames, as many segments as needed.

        Holds the lock.  Raises LogUnavailable when another process has it, DriverDependencyMissing without pyarrow.
        """
        made: list[Segment] = []
        with self.lock():
            limit = self._log.state()[shard].end if before is None else before
            while (segment := self._seal_one(shard, limit)) is not None:
                made.append(segment)
        return made

    def _seal_one(self, shard: int, limit: int) -> Segment | None:
        first = self._log.state()[shard].sealed
        self._on_step("lock")
        portions = self._portions(shard, first, limit)
        opening = next(portions, None)
        if opening is None:
            return None
        batches = map(_to_batch, itertools.chain([opening], portions))
        segment = write_segment(self._log.directory, shard, first, batches)
        self._on_step("write")
        segment = publish(segment)
        self._on_step("publish")
        if not self._log.add_segment(shard, first, segment.end, self._log.encode_entry(segment)):
            self._log.remove_files([segment])  # the shard was trimmed beyond it meanwhile
            return None
        self._on_step("commit")
        return segment

    def _portions(self, shard: int, offset: int, limit: int) -> Iterator[list[StoredFrame]]:
        """Hot frames that end by the limit, a row group at a time, up to the size of a segment."""
        last = offset + self._events_max
        while offset < limit:
            events_max = min(ROW_GROUP_EVENTS, last - offset)  # the rest would be read again for the next
            _, frames = self._log.hot_read(shard, offset, events_max=events_max, bytes_max=ROW_GROUP_BYTES)
            frames = [one for one in frames if one.end <= limit and (one.end <= last or one.offset == offset)]
            if not frames or frames[0].offset != offset:
                return
            yield frames
            offset = frames[-1].end
            if offset >= last:
                return

    def clean(self) -> list[pathlib.Path]:
        """Remove files that are in no manifest: what died sealers and drops have left.  Holds the lock."""
        directory = self._log.directory
        with self.lock():
            known = {segment.path for segment in self._log.segments()}
            orphans = [path for path in directory.glob("[0-9]*/*") if _is_ours(path) and str(path) not in known]
            orphans += list(directory.glob("[0-9]*/.*.tmp"))
            for path in orphans:
                path.unlink(missing_ok=True)
        return orphans


def _is_ours(path: pathlib.Path) -> bool:
    return path.suffix == ".parquet" and not path.name.startswith(".")


def _to_batch(frames: list[StoredFrame]) -> pyarrow.RecordBatch:
    try:
        return columns.events_batch(frames, with_frames=True)
    except FrameError as error:
        where = f"shard {frames[0].shard}, offsets {frames[0].offset} to {frames[-1].end}"
        raise LogCorrupt(f"{where}: a frame in the store is damaged: {error}") from error
