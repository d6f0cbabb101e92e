"""A sample: one change of one object, kept for readers that come later.

Samples of an instance (topic, table, key) are ordered by ``(timestamp, writer, number)``: a total order that is the
same in every service, because all three were given by the publisher.  A digest identifies a sample with its content, so
that sums of digests compare whole sets.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

InstanceKey = tuple[str, str, str]
"""topic, table, key"""

DIGEST_BYTES = 16
DIGEST_MODULUS = 1 << 8 * DIGEST_BYTES


class Sample(NamedTuple):
    topic: str
    table: str
    key: str
    timestamp: int
    """Hybrid logical clock of the publisher, nanoseconds."""
    writer: bytes
    """GUID of the publisher."""
    number: int
    """Its place in the publisher's stream."""
    is_delete: bool
    event: bytes
    """The event as it stood in its frame: ``[table, key, action, value, version, timestamp]`` in msgpack."""
    digest: bytes

    @property
    def instance(self) -> InstanceKey:
        return self[:3]

    @property
    def order(self) -> tuple[int, bytes, int]:
        return self[3:6]


as_sample: Callable[[tuple[Any, ...]], Sample] = functools.partial(tuple.__new__, Sample)
"""What ``Sample(*fields)`` does, at a fraction of the price."""


def make_sample(
    topic: str, table: str, key: str, *, timestamp: int, writer: bytes, number: int, is_delete: bool, event: bytes
) -> Sample:
    """A sample with its digest."""
    return sample_maker(topic, writer)(table, key, timestamp, number, is_delete, event)


def sample_maker(topic: str, writer: bytes) -> Callable[[str, str, int, int, bool, bytes], Sample]:
    """Makes samples of one stream of ``table, key, timestamp, number, is_delete, event``."""
    topic_bytes = topic.encode() + b"\0"

    def make(table: str, key: str, timestamp: int, number: int, is_delete: bool, event: bytes) -> Sample:
        identity = writer + number.to_bytes(8, "big") + topic_bytes + event
        digest = blake2b(identity, digest_size=DIGEST_BYTES).digest()
        return as_sample((topic, table, key, timestamp, writer, number, is_delete, event, digest))

    return make


def digest_value(digest: bytes) -> int:
    """A digest as a term of a sum modulo `DIGEST_MODULUS`."""
    return int.from_bytes(digest, "big")


def bucket_of(instance: InstanceKey, buckets: int) -> int:
    """The bucket of an instance: the same in every process and release."""
    return zlib.crc32("\0".join(instance).encode()) % buckets


def newest_first(samples: tuple[Sample, ...], depth: int) -> tuple[Sample, ...]:
    """What is kept of an instance: distinct samples, newest first, none older than its newest deletion, at most
    ``depth``.

    Keeping is a join: ``keep(keep(a) + keep(b)) == keep(a + b)``, in any order and any number of times.  What one side
    dropped is older than a deletion, or than ``depth`` samples, that the union has as well.
    """
    kept: list[Sample] = []
    for sample in sorted(set(samples), key=_order, reverse=True):
        kept.append(sample)
        if sample.is_delete or len(kept) == depth:
            break
    return tuple(kept)


def _order(sample: Sample) -> tuple[int, bytes, int]:
    return sample[3:6]
