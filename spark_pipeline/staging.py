"""Rows on their way out of Spark: encoded by the tasks into files, taken from there by the one commit.

A task writes what it has into a file of its own and hands back the file's name.  So a task that runs twice, or dies
half way, leaves a file that nobody names; and what a commit delivers is exactly what was staged, also when the commit
is tried again.  The directory must be reachable by every worker: on a cluster that is shared storage.
"""

from __future__ import annotations

import os
import pathlib
import struct
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from pubsub_api.core.events import Event, encode_event
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import InvalidEvent
from spark_pipeline.errors import PipelineError, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".staged"
REQUIRED_COLUMNS = ("topic", "table", "key", "action")

Portion = dict[str, list[bytes]]
"""Topic -> encoded events, in order."""

_SIZE = struct.Struct(">I")
_encode_portion = msgspec.msgpack.Encoder().encode
_decode_portion = msgspec.msgpack.Decoder(Portion).decode
_check_value = msgspec.msgpack.Decoder().decode


def stage(directory: str, batches: Iterable[pa.RecordBatch], *, stamp: int) -> tuple[str, int]:
    """Encode rows into a new file, durable when this returns; gives its name and the number of rows.

    Rows need ``topic``, ``table``, ``key`` and ``action``; ``value`` (msgpack), ``version`` and ``timestamp`` may be
    absent or null.  Raises SchemaMismatch, InvalidEvent, InvalidTopic.
    """
    pathlib.Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{uuid.uuid4().hex}{SUFFIX}"
    rows = 0
    with open(os.path.join(directory, name), "xb") as file:
        for batch in batches:
            portion = _encode_portion(encode_rows(batch, stamp=stamp))
            file.write(_SIZE.pack(len(portion)) + portion)
            rows += batch.num_rows
        file.flush()
        os.fsync(file.fileno())
    return name, rows


def encode_rows(batch: pa.RecordBatch, *, stamp: int) -> Portion:
    """The events of an Arrow batch by topic.  Rows without a timestamp get ``stamp``."""
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
    portion: Portion = {}
    for topic, table, key, action, value, version, timestamp in rows:
        event = Event(
            table=table, key=key, action=action, value=_raw(value, table, key), version=version or 0,
            timestamp=timestamp or 0,
        )  # fmt: skip
        if topic not in portion:
            portion[check_topic(topic)] = []
        portion[topic].append(encode_event(event, stamp))
    return portion


def _raw(value: Any, table: str, key: str) -> msgspec.Raw | None:
    """A value that is msgpack already, looked at once: what is published must be decodable by everybody."""
    if value is None:
        return None
    try:
        _check_value(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"event {table}/{key}: column 'value' must hold msgpack as binary: {error}") from error
    return msgspec.Raw(value)


def read_staged(directory: str, name: str) -> Iterator[Portion]:
    """What a task staged, in portions.  Raises PipelineError when the file is gone or damaged."""
    path = os.path.join(directory, name)
    try:
        with open(path, "rb") as file:
            while head := file.read(_SIZE.size):
                size = _SIZE.unpack(head)[0]
                body = file.read(size)
                if len(body) != size:
                    raise PipelineError(f"staged file {path} ends too early")
                yield _decode_portion(body)
    except (OSError, struct.error, msgspec.MsgspecError) as error:
        raise PipelineError(f"staged file {path} cannot be read: {error}") from error


def discard(directory: str, names: Iterable[str]) -> None:
    """Remove files; those that are gone already are fine."""
    for name in names:
        pathlib.Path(directory, name).unlink(missing_ok=True)
