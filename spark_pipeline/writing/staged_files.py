"""Rows on their way out of Spark: encoded by the tasks into files, taken from there by the one commit.

A task writes what it has into a file of its own and hands back the file's name.  So a task that runs twice, or dies
half way, leaves a file that no commit names; and what a commit delivers is exactly what was staged, also when the
commit is tried again.  The directory must be reachable by every worker: on a cluster that is shared storage.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from pubsub_api.core.events import ENCODING_ERRORS, Event, check_value, encode_event, encode_fields
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import InvalidEvent
from pubsub_api.runtime.files import GROUP_READS, make_directory, open_private
from pubsub_api.runtime.sockets import messages
from spark_pipeline.errors import PipelineError, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".staged"
REQUIRED_COLUMNS = ("topic", "table", "key", "action")

Check = Callable[[str, str, int], None]
"""Table, key and size of an event, encoded.  Raises InvalidEvent when its target does not take it."""


class StagedPortion(msgspec.Struct, array_like=True):
    """Encoded events in the order of their rows."""

    topics: list[str]
    """Each once."""
    places: list[int]
    """Per event, the place of its topic in ``topics``."""
    events: list[bytes]

    def in_order(self) -> Iterator[tuple[str, bytes]]:
        """Topic and event of every row, as the rows came: one object may change its topic."""
        return ((self.topics[place], event) for place, event in zip(self.places, self.events, strict=True))

    def by_topic(self) -> Iterator[tuple[str, list[bytes]]]:
        """Each topic with its events in order, for targets that keep the order of a topic and of nothing else."""
        found: list[list[bytes]] = [[] for _ in self.topics]
        for place, event in zip(self.places, self.events, strict=True):
            found[place].append(event)
        return zip(self.topics, found, strict=True)


_FORGOTTEN_AGE_S = 7 * 86_400
"""A week: a batch that runs for so long does not end any more."""
_READ_BYTES = 1024 * 1024
_encode_portion = msgspec.msgpack.Encoder().encode
_decode_portion = msgspec.msgpack.Decoder(StagedPortion).decode
_decode_value = msgspec.msgpack.Decoder().decode


def stage(directory: str, batches: Iterable[pa.RecordBatch], *, stamp: int, check: Check) -> tuple[str, int]:
    """Encode rows into a new file, durable when this returns; gives its name and the number of rows.

    Rows need ``topic``, ``table``, ``key`` and ``action``; ``value`` (msgpack), ``version`` and ``timestamp`` may be
    absent or null.  Raises SchemaMismatch, InvalidTopic, InvalidEvent, and what ``check`` raises.
    """
    make_directory(directory, mode=GROUP_READS)
    name = f"{uuid.uuid4().hex}{SUFFIX}"
    rows = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(open_private(os.path.join(directory, name), flags, mode=GROUP_READS), "wb") as file:
        for batch in batches:
            portion = _encode_portion(encode_rows(batch, stamp=stamp, check=check))
            file.write(messages.pack(portion))
            rows += batch.num_rows
        file.flush()
        os.fsync(file.fileno())
    return name, rows


def encode_rows(batch: pa.RecordBatch, *, stamp: int, check: Check) -> StagedPortion:
    """The events of an Arrow batch.  Rows without a timestamp get ``stamp``."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for name in REQUIRED_COLUMNS:
        if name not in columns:
            raise SchemaMismatch(f"rows need a column {name!r} to become events; there are: {', '.join(columns)}")
    absent = [None] * batch.num_rows
    rows = zip(
        *(columns[name] for name in REQUIRED_COLUMNS),
        *(columns.get(name, absent) for name in ("value", "version", "timestamp")),
        strict=True,
    )
    places: dict[str, int] = {}
    portion = StagedPortion([], [], [])
    for topic, table, key, action, value, version, timestamp in rows:
        if topic not in places:
            places[check_topic(topic)] = len(places)
            portion.topics.append(topic)
        event = Event(table=table, key=key, action=action, version=version or 0, timestamp=timestamp or 0)
        encoded = encode_event(event, stamp)
        if value is not None:
            fields = (table, key, action, _raw(value, table, key), event.version, event.timestamp or stamp)
            encoded = encode_fields(fields)
        check(table, key, len(encoded))
        portion.places.append(places[topic])
        portion.events.append(encoded)
    return portion


def _raw(value: Any, table: str, key: str) -> msgspec.Raw:
    """A value that is msgpack already, looked at once: what is published must be decodable by every subscriber."""
    try:
        check_value(_decode_value(value))
    except ENCODING_ERRORS as error:
        raise InvalidEvent(f"event {table}/{key}: column 'value' must hold msgpack as binary: {error}") from error
    return msgspec.Raw(value)


def read_staged(directory: str, name: str) -> Iterator[StagedPortion]:
    """What a task staged, in portions.  Raises PipelineError when the file is gone or damaged."""
    path = os.path.join(directory, name)
    splitter = messages.Splitter(messages.BYTES_MAX, PipelineError)
    try:
        with open(path, "rb") as file:
            while data := file.read(_READ_BYTES):
                yield from map(_decode_portion, splitter.feed(data))
    except (OSError, msgspec.MsgspecError) as error:
        raise PipelineError(f"staged file {path} cannot be read: {error}") from error
    if splitter.waiting_bytes:
        raise PipelineError(f"staged file {path} ends too early")


def forgotten(directory: str) -> list[str]:
    """Files of attempts that were killed long ago: no task has written to them for longer than any batch takes."""
    before = time.time() - _FORGOTTEN_AGE_S
    found = []
    for file in pathlib.Path(directory).glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < before:
                found.append(file.name)
    return found


def discard(directory: str, names: Iterable[str]) -> None:
    """Remove files; those that are gone already are fine."""
    for name in names:
        pathlib.Path(directory, name).unlink(missing_ok=True)
