"""Appending the events of a file to a log: the work behind ``heliograph log import``.

Frames go in as they were, with their publisher, their numbers and their signature, so the log knows what it has: to
import a file again, also after it was killed half way, appends what is still missing and nothing twice.  Their offsets,
and when they were appended, are those of the new log.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import struct
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import msgspec

from durable_log import config
from durable_log.core.placing import NOWHERE, StreamPosition, place
from durable_log.log_api import LogApi, StoredFrame
from durable_log.segments.columns import import_pyarrow, schema
from durable_log.segments.rebuilding import stored_frames
from durable_log.transfer.exporting import format_of
from durable_log.transfer.json_rows import decode_row
from durable_log.upkeep.verifying import OnProgress
from pubsub_api.core.frame import Header
from pubsub_api.errors import FrameError, InvalidTopic, UsageError

if TYPE_CHECKING:
    import pyarrow

_PORTION_EVENTS = 8192


@dataclasses.dataclass
class ImportReport:
    frames: int = 0
    events: int = 0
    """Events that the log did not have."""
    duplicates: int = 0
    """Events that it had already."""


def import_file(
    log: LogApi, path: pathlib.Path, *, on_progress: OnProgress = lambda _done, _total: None
) -> ImportReport:
    """Append the frames of a file that `export` has written, or of a sealed segment.

    What was appended before an error stays; to import the file again completes it.  Raises UsageError when it is no
    such file, LogError, FrameError, OSError, DriverDependencyMissing.
    """
    report = ImportReport()
    for frames in _portions(path, on_progress):
        appended = log.append([one.frame for one in frames])
        report.frames += len(frames)
        report.events += appended.events
        report.duplicates += appended.duplicates
    return report


def try_import(
    log: LogApi | None, path: pathlib.Path, *, on_progress: OnProgress = lambda _done, _total: None
) -> ImportReport:
    """What `import_file` would do; nothing is written.  ``log`` None: to a log that does not exist yet."""
    report, position = ImportReport(), _positions(log)
    known: dict[tuple[bytes, str], StreamPosition] = {}
    for frames in _portions(path, on_progress):
        for header in (one.header() for one in frames):
            stream = (header.guid, header.topic)
            placement = place(header, known.get(stream) or position(header), ranges_max=config.MISSING_RANGES_MAX)
            known[stream] = placement.position
            kept = sum(last - first + 1 for first, last in placement.kept)
            report.frames += 1
            report.events += kept
            report.duplicates += header.count - kept
    return report


def _positions(log: LogApi | None) -> Callable[[Header], StreamPosition]:
    """Where a stream stands in a log."""
    shards: dict[int, dict[tuple[bytes, str], StreamPosition]] = {}

    def position(header: Header) -> StreamPosition:
        if log is None:
            return NOWHERE
        for shard in reversed(log.shards_of(header.topic)):
            if shard not in shards:
                shards[shard] = {
                    (one.guid, one.topic): StreamPosition(one.last, one.missing) for one in log.streams(shard)
                }
            if (header.guid, header.topic) in shards[shard]:
                return shards[shard][header.guid, header.topic]
        return NOWHERE

    return position


def _portions(path: pathlib.Path, on_progress: OnProgress) -> Iterator[list[StoredFrame]]:
    """The frames of a file.  Raises UsageError when something in it is not what `export` writes."""
    read = {"jsonl": _lines, "parquet": _row_groups}[format_of(path)]
    arrow, wanted = import_pyarrow(), schema(with_frames=True)
    tables = read(path, on_progress)
    while True:
        try:
            table = next(tables, None)
            if table is None:
                return
            if not table.num_rows:
                continue
            table = table.select(wanted.names).cast(wanted)  # other programs write texts of another type
            frames = list(stored_frames(table))
            _check_frames(table, frames)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path}") from None
        except (
            arrow.ArrowException, FrameError, InvalidTopic, struct.error, OSError, KeyError, TypeError, ValueError,
            OverflowError, RecursionError,
        ) as error:  # fmt: skip
            raise UsageError(f"{path} is not a sound file of 'heliograph log export': {error}") from error
        yield frames


def _check_frames(table: pyarrow.Table, frames: list[StoredFrame]) -> None:
    """Raises FrameError, ValueError for frames that no publisher makes, and for rows of which some were exchanged: a
    program that has sorted them anew may have left as many as a frame has."""
    numbers = iter(table.column("seq").to_pylist())
    streams = zip(table.column("guid").to_pylist(), table.column("topic").to_pylist(), strict=True)
    for one in frames:
        header = one.header()
        first = header.first + one.skipped
        for number, stream in itertools.islice(zip(numbers, streams, strict=True), one.count):
            if stream != (header.guid, header.topic) or number != first:
                raise ValueError(f"event {number} of {stream[1]!r} stands in a frame of {header.topic!r}, at {first}")
            first += 1


def _lines(path: pathlib.Path, on_progress: OnProgress) -> Iterator[pyarrow.Table]:
    arrow, total = import_pyarrow(), path.stat().st_size
    with path.open("rb") as file:
        for rows in _whole_frames(_rows(file)):
            yield arrow.Table.from_pylist(rows, schema=schema(with_frames=True))
            on_progress(file.tell(), total)


def _rows(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    for number in itertools.count(1):
        line = file.readline()
        if not line:
            return
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is not complete")
            yield decode_row(line)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error


def _whole_frames(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in portions, each of which begins with a frame."""
    portion: list[dict[str, Any]] = []
    for row in rows:
        if len(portion) >= _PORTION_EVENTS and row["frame_count"] is not None:
            yield portion
            portion = []
        portion.append(row)
    if portion:
        yield portion


def _row_groups(path: pathlib.Path, on_progress: OnProgress) -> Iterator[pyarrow.Table]:
    """A program that has written the file anew may have begun a group within a frame."""
    arrow, rest = import_pyarrow(), None
    with arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=schema(with_frames=True).names, use_threads=False)
            table = table if rest is None else arrow.concat_tables([rest, table])
            whole = _last_start(table) if group + 1 < file.num_row_groups else table.num_rows
            yield table.slice(0, whole)
            rest = table.slice(whole)
            on_progress(group + 1, file.num_row_groups)


def _last_start(table: pyarrow.Table) -> int:
    """The row with which the last frame begins, of which the rest may follow; how many there are when none does."""
    counts = table.column("frame_count").to_pylist()
    return next((row for row in reversed(range(len(counts))) if counts[row] is not None), len(counts))
