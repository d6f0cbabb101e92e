"""What an audit expects of each stream: the numbers that a publisher gave, and those that a log never saw.

Numbers alone tell of a loss that was none: a publisher may skip some on purpose, retention and compaction remove
events.  A log knows better.  It keeps, per stream, which numbers never came (`durable_log.StreamState`); what else is
not there was there once, or was never to come.  So the log's word decides where there is one.  Without it, every number
from the first to the last is expected.

Kept as JSON lines, one per stream, in a file that ``heliograph pipeline heads`` writes, and by the ingest job beside
the table of the lake.  Nothing here needs Spark.
"""

from __future__ import annotations

import os
import pathlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from durable_log import LogApi
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import UsageError
from pubsub_api.runtime.files import GROUP_READS, open_private
from spark_pipeline.objects import ObjectDirectory

Range = tuple[int, int]
"""First and last number, both included."""
_PREFIX = "_heads-"


class StreamHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one stream."""

    publisher: str
    """In hexadecimal."""
    topic: str
    last: int
    first: int = 1
    missing: tuple[Range, ...] | None = None
    """By the word of a log: the numbers up to ``last`` that never came.  None: no log was asked."""


class Expected(NamedTuple):
    """What all that is known of a stream comes to."""

    first: int
    last: int
    lost: tuple[Range, ...] | None
    """Numbers that no log ever saw; None when no log was asked, and every number is expected."""

    @property
    def lost_count(self) -> int | None:
        return None if self.lost is None else sum(last - first + 1 for first, last in self.lost)


Stream = tuple[str, str]
"""Publisher, in hexadecimal, and topic."""

_decode = msgspec.json.Decoder(StreamHead).decode
_encode = msgspec.json.Encoder().encode


def of_log(log: LogApi) -> Iterator[StreamHead]:
    """What a log knows of its streams."""
    for shard in range(log.shards):
        for stream in log.streams(shard):
            yield StreamHead(stream.guid.hex(), stream.topic, stream.last, missing=stream.missing)


def read(file: str | os.PathLike[str]) -> list[StreamHead]:
    """Raises UsageError naming the line that is wrong."""
    return _parse(pathlib.Path(file).read_bytes(), os.fspath(file))


def _parse(text: bytes, where: str) -> list[StreamHead]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            head = _decode(line)
            bytes.fromhex(head.publisher)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"{where}, line {number}: {error}") from error
        found.append(head)
    return found


def _text(heads: Iterable[StreamHead]) -> bytes:
    return b"".join(_encode(head) + b"\n" for head in heads)


def write(file: str | os.PathLike[str], heads: Iterable[StreamHead]) -> None:
    """The file appears whole or not at all; of two that write it at once, one wins."""
    final = pathlib.Path(file)
    new = final.with_name(f"{final.name}.{uuid.uuid4().hex}.new")
    with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=GROUP_READS), "wb") as file_of_heads:
        file_of_heads.write(_text(heads))
        file_of_heads.flush()
        os.fsync(file_of_heads.fileno())
    os.replace(new, final)


def note_beside(table: pathlib.Path | ObjectDirectory, log: LogApi) -> None:
    """Keep what a log knows beside a table of the lake, with what it has forgotten since."""
    name = f"{_PREFIX}{log.identity}.jsonl"
    if isinstance(table, ObjectDirectory):
        former = _parse(table.read(name) or b"", f"{table}/{name}")
    else:
        former = read(table / name) if (table / name).exists() else []
    known = {(head.publisher, head.topic): head for head in former}
    known.update({(head.publisher, head.topic): head for head in of_log(log)})
    if isinstance(table, ObjectDirectory):
        table.put(name, _text(known.values()))
    else:
        write(table / name, known.values())


def beside(table: pathlib.Path | ObjectDirectory) -> list[list[StreamHead]]:
    """What the logs knew that were taken into a table: a list for each."""
    if isinstance(table, ObjectDirectory):
        names = [name for name in table.children() if name.startswith(_PREFIX)]
        return [_parse(table.read(name) or b"", f"{table}/{name}") for name in names]
    return [read(file) for file in sorted(table.glob(f"{_PREFIX}*.jsonl"))]


def expect(sources: Sequence[Iterable[StreamHead]], topics: Sequence[str]) -> dict[Stream, Expected]:
    """Put together what several sources know of the streams that these filters select."""
    filters = FilterSet(topics)
    known: dict[Stream, list[StreamHead]] = {}
    for source in sources:
        for head in source:
            if filters.match(head.topic):
                known.setdefault((head.publisher, head.topic), []).append(head)
    return {stream: _together(heads) for stream, heads in known.items()}


def _together(heads: Sequence[StreamHead]) -> Expected:
    last = max(head.last for head in heads)
    first = min((head.first for head in heads if head.missing is None), default=1)
    lost: tuple[Range, ...] | None = None
    for head in heads:
        if head.missing is not None:
            unseen = (*head.missing, (head.last + 1, last))
            lost = clip(unseen, first, last) if lost is None else _in_both(lost, unseen)
    return Expected(first, last, lost)


def clip(ranges: Iterable[Range], first: int, last: int) -> tuple[Range, ...]:
    """What of the ranges lies between two numbers."""
    cut = ((max(low, first), min(high, last)) for low, high in ranges)
    return tuple(one for one in cut if one[0] <= one[1])


def _in_both(some: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    return tuple(part for low, high in some for part in clip(others, low, high))
