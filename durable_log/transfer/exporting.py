"""Writing events of a log to a file: the work behind ``heliograph log export``.

A file has the rows of a segment (`durable_log.segments.columns`), whichever its format is: so frames come back byte for
byte when it is imported, and every program that reads JSON lines or Parquet sees events.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from durable_log.errors import OffsetTooOld
from durable_log.log_api import LogApi, StoredFrame
from durable_log.segments.columns import events_batch, import_pyarrow, schema
from durable_log.transfer.json_rows import encode_row
from durable_log.upkeep.verifying import OnProgress
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import UsageError
from pubsub_api.runtime.files import make_private, open_private

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = {".jsonl": "jsonl", ".parquet": "parquet"}
_PORTION_EVENTS = 16_384
_PORTION_BYTES = 16 << 20


@dataclasses.dataclass
class ExportReport:
    frames: int = 0
    events: int = 0
    bytes: int = 0
    """Size of the file."""
    dropped: int = 0
    """Offsets that retention dropped while they were to be exported."""


def format_of(path: pathlib.Path) -> str:
    """Raises UsageError."""
    try:
        return SUFFIXES[path.suffix]
    except KeyError:
        raise UsageError(f"{path}: the name of a file of events ends with {' or '.join(SUFFIXES)}") from None


def export(
    log: LogApi,
    path: pathlib.Path,
    *,
    starts: dict[int, int],
    filters: Sequence[str] = ("#",),
    on_progress: OnProgress = lambda _done, _total: None,
) -> ExportReport:
    """Write what shards have from these offsets on, up to where they end now, to a file that must not exist.

    Whole frames, those whose topic matches a filter.  The file gets its name when it is complete and on disk.  Others
    may use the log meanwhile.  Raises UsageError, LogError, OSError, DriverDependencyMissing.
    """
    write = {"jsonl": _lines, "parquet": _parquet}[format_of(path)]
    if path.exists():
        raise UsageError(f"{path} exists already: name a file that does not")
    ends = {state.shard: state.end for state in log.state() if state.shard in starts}
    total, report = sum(max(0, ends[shard] - start) for shard, start in starts.items()), ExportReport()
    accepted = FilterSet(filters)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of an export that was killed
    make_private(temporary)

    def batches() -> Iterator[pyarrow.RecordBatch]:
        done = 0
        for shard, start in starts.items():
            for frames, following in _portions(log, shard, start, ends[shard], report):
                wanted = [one for one in frames if accepted.match(one.header().topic)]
                if wanted:
                    report.frames += len(wanted)
                    report.events += sum(one.count for one in wanted)
                    yield events_batch(wanted, with_frames=True)
                on_progress(done + following - start, total)
            done += max(0, ends[shard] - start)

    try:
        write(temporary, batches())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        report.bytes = temporary.stat().st_size
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return report


def _portions(
    log: LogApi, shard: int, start: int, end: int, report: ExportReport
) -> Iterator[tuple[list[StoredFrame], int]]:
    offset = start
    while offset < end:
        try:
            found = log.read(shard, offset, events_max=_PORTION_EVENTS, bytes_max=_PORTION_BYTES)
        except OffsetTooOld as error:
            report.dropped += min(error.start, end) - offset
            offset = error.start
            continue
        frames = [one for one in found if one.offset < end]
        offset = frames[-1].end if frames else end
        yield frames, min(offset, end)


def _lines(path: pathlib.Path, batches: Iterator[pyarrow.RecordBatch]) -> None:
    with os.fdopen(open_private(path, os.O_WRONLY), "wb") as file:
        for batch in batches:
            rows: list[dict[str, Any]] = batch.to_pylist()
            file.write(b"".join(part for row in rows for part in (encode_row(row), b"\n")))


def _parquet(path: pathlib.Path, batches: Iterator[pyarrow.RecordBatch]) -> None:
    arrow = import_pyarrow()
    writer = arrow.parquet.ParquetWriter(path, schema(with_frames=True), compression="zstd", write_page_checksum=True)
    with contextlib.closing(writer):
        for batch in batches:
            writer.write_batch(batch, row_group_size=batch.num_rows)
