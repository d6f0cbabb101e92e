"""Samples packed together: the form in which they are sent, stored, and kept in memory while they are not used.

A batch is a checksum and msgpack: a head that describes the samples, and columns.  With the head alone a batch can be
taken over, sent on and stored.  Topics, tables and writers, which most samples share, are stored once each.

The checksum is verified before a `SampleBatch` is made, so a `SampleBatch` can always be unpacked.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from durability_service.core.sets.samples import (
    DIGEST_BYTES,
    DIGEST_MODULUS,
    InstanceKey,
    Sample,
    as_sample,
    bucket_of,
    digest_value,
)
from pubsub_api.core.errors import UndecodableBody

Value = TypeVar("Value", str, bytes)
_CHECKSUM_BYTES = 4


@dataclasses.dataclass(frozen=True)
class SampleBatch:
    content: bytes
    """The complete batch.  The other fields are those of its head."""
    count: int
    digest: int
    """Sum of the digests of the samples."""
    newest: int
    """The highest timestamp; 0 when there are no samples."""
    first_delete: int
    """The lowest timestamp of a sample that deletes its instance; 0 if there is none."""
    topics: tuple[str, ...]


class BucketSummary(NamedTuple):
    """The head of a batch that is not in memory, without its topics."""

    digest: int
    samples: int
    newest: int
    first_delete: int


class _Head(msgspec.Struct, array_like=True, gc=False):
    count: int
    digest: bytes
    newest: int
    first_delete: int
    topics: tuple[str, ...]
    columns: memoryview


class _Columns(msgspec.Struct, array_like=True, gc=False):
    """``x_of`` holds, for each sample, a position in the list of values ``xs``; it is empty if there is one value."""

    topic_of: Sequence[int]
    tables: Sequence[str]
    table_of: Sequence[int]
    writers: Sequence[bytes]
    writer_of: Sequence[int]
    keys: Sequence[str]
    timestamps: Sequence[int]
    numbers: Sequence[int]
    deletes: Sequence[int]
    """Positions of the samples that delete their instance."""
    events: Sequence[bytes]
    digests: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode


def pack(samples: Sequence[Sample], digest: int | None = None) -> SampleBatch:
    """The samples as a batch, in this order.  ``digest`` is the sum of their digests, if the caller knows it."""
    if not samples:
        return EMPTY
    topics, tables, keys, timestamps, writers, numbers, is_delete, events, digests = zip(*samples, strict=True)
    known_topics, topic_of = _dictionary_encoded(topics)
    known_tables, table_of = _dictionary_encoded(tables)
    known_writers, writer_of = _dictionary_encoded(writers)
    deletes = [position for position, one in enumerate(is_delete) if one] if any(is_delete) else []
    columns = _Columns(
        topic_of, known_tables, table_of, known_writers, writer_of, keys, timestamps, numbers, deletes, events,
        b"".join(digests),
    )  # fmt: skip
    return _batch(
        columns,
        topics=tuple(known_topics),
        count=len(samples),
        digest=sum(map(digest_value, digests)) % DIGEST_MODULUS if digest is None else digest,
        newest=max(timestamps),
        first_delete=min((timestamps[position] for position in deletes), default=0),
    )


def _batch(
    columns: _Columns, *, topics: tuple[str, ...], count: int, digest: int, newest: int, first_delete: int
) -> SampleBatch:
    stated = digest.to_bytes(DIGEST_BYTES, "big")
    body = _encode(_Head(count, stated, newest, first_delete, topics, memoryview(_encode(columns))))
    content = zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body
    return SampleBatch(content, count, digest, newest, first_delete, topics)


def _dictionary_encoded(column: Sequence[Value]) -> tuple[list[Value], list[int]]:
    """The different values, and the position of each sample's value among them; no positions for a single value."""
    values = list(dict.fromkeys(column))
    if len(values) == 1:
        return values, []
    position = {value: number for number, value in enumerate(values)}
    return values, [position[value] for value in column]


_NO_COLUMNS = _Columns((), (), (), (), (), (), (), (), (), (), b"")
EMPTY = _batch(_NO_COLUMNS, topics=(), count=0, digest=0, newest=0, first_delete=0)


def from_content(content: bytes) -> SampleBatch:
    """A batch that was stored or sent.  Raises UndecodableBody if it is damaged."""
    body = memoryview(content)[_CHECKSUM_BYTES:]
    if zlib.crc32(body) != int.from_bytes(content[:_CHECKSUM_BYTES], "big"):
        raise UndecodableBody("a batch of samples is damaged")
    try:
        head = _decode_head(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UndecodableBody(f"not a batch of samples: {error}") from error
    return SampleBatch(content, head.count, digest_value(head.digest), head.newest, head.first_delete, head.topics)


HEAD_BYTES = 64
"""So many bytes from the beginning of a batch are enough for `summary`."""


def summary(content: bytes) -> BucketSummary:
    """Decode the head of a batch from its first `HEAD_BYTES`, without verifying the checksum, which covers all bytes.

    Raises IndexError if ``content`` is too short.
    """
    count, at = _unsigned(content, _CHECKSUM_BYTES + 1)
    at += 2  # type and length of the digest
    digest = digest_value(content[at : at + DIGEST_BYTES])
    newest, at = _unsigned(content, at + DIGEST_BYTES)
    return BucketSummary(digest, count, newest, _unsigned(content, at)[0])


def _unsigned(content: bytes, at: int) -> tuple[int, int]:
    """Decode the unsigned msgpack number at a position.  Returns it, and the position behind it."""
    first = content[at]
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(first)
    if size is None:
        return first, at + 1
    return int.from_bytes(content[at + 1 : at + 1 + size], "big"), at + 1 + size


def unpack(batch: SampleBatch) -> list[Sample]:
    """The samples, in the order in which they were packed."""
    columns = _columns_of(batch)
    is_delete = [False] * batch.count
    for position in columns.deletes:
        is_delete[position] = True
    digests = columns.digests
    fields = zip(
        _column(batch.topics, columns.topic_of, batch.count),
        _column(columns.tables, columns.table_of, batch.count),
        columns.keys,
        columns.timestamps,
        _column(columns.writers, columns.writer_of, batch.count),
        columns.numbers,
        is_delete,
        columns.events,
        [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)],
        strict=True,
    )
    return list(map(as_sample, fields))


def find(batch: SampleBatch, instance: InstanceKey) -> tuple[Sample, ...]:
    """The samples of an instance, in the order in which they were packed.  Faster than to unpack all."""
    columns = _columns_of(batch)
    topic, table, key = instance
    found: list[Sample] = []
    at = -1
    for _ in range(columns.keys.count(key)):
        at = columns.keys.index(key, at + 1)
        is_topic = topic == _value_at(batch.topics, columns.topic_of, at)
        if is_topic and table == _value_at(columns.tables, columns.table_of, at):
            writer = _value_at(columns.writers, columns.writer_of, at)
            digest = columns.digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
            stamp, number = columns.timestamps[at], columns.numbers[at]
            is_delete = at in columns.deletes
            found.append(Sample(topic, table, key, stamp, writer, number, is_delete, columns.events[at], digest))
    return tuple(found)


def _columns_of(batch: SampleBatch) -> _Columns:
    return _decode_columns(_decode_head(memoryview(batch.content)[_CHECKSUM_BYTES:]).columns)


def _value_at(values: Sequence[Value], positions: Sequence[int], at: int) -> Value:
    return values[positions[at]] if positions else values[0]


def pack_buckets(samples: Iterable[Sample], buckets: int) -> dict[int, SampleBatch]:
    """Bucket -> its samples as a batch, newest first; for buckets that are not empty."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(bucket_of(sample[:3], buckets), []).append(sample)
    return {number: pack(sorted(some, key=lambda sample: sample.order, reverse=True)) for number, some in found.items()}


def _column(values: Sequence[Value], positions: Sequence[int], count: int) -> Iterable[Value]:
    """The value of each sample."""
    return [values[at] for at in positions] if positions else itertools.repeat(values[0], count) if count else ()
