"""A sample: one change of one object, kept for readers that come later.

Samples of an instance (topic, table, key) are ordered by ``(timestamp, writer, number)``.  The publisher sets all
three, so every service has the same total order.  The digest of a sample covers its identity and its content: two sets
are compared by the sums of their digests.
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
    """Its number in the stream of the publisher on this topic."""
    is_delete: bool
    event: bytes
    """The event as it was in its frame: ``[table, key, action, value, version, timestamp]`` in msgpack."""
    digest: bytes

    @property
    def instance(self) -> InstanceKey:
        return self[:3]

    @property
    def order(self) -> tuple[int, bytes, int]:
        return self[3:6]


as_sample: Callable[[tuple[Any, ...]], Sample] = functools.partial(tuple.__new__, Sample)
"""Does the same as ``Sample(*fields)``, and takes a fraction of the time."""


def make_sample(
    topic: str, table: str, key: str, *, timestamp: int, writer: bytes, number: int, is_delete: bool, event: bytes
) -> Sample:
    """A sample with its digest."""
    return sample_maker(topic, writer)(table, key, timestamp, number, is_delete, event)


def sample_maker(topic: str, writer: bytes) -> Callable[[str, str, int, int, bool, bytes], Sample]:
    """A function that makes samples of one stream, from ``table, key, timestamp, number, is_delete, event``."""
    topic_bytes = topic.encode() + b"\0"

    def make(table: str, key: str, timestamp: int, number: int, is_delete: bool, event: bytes) -> Sample:
        identity = writer + number.to_bytes(8, "big") + topic_bytes + event
        digest = blake2b(identity, digest_size=DIGEST_BYTES).digest()
        return as_sample((topic, table, key, timestamp, writer, number, is_delete, event, digest))

    return make


def digest_value(digest: bytes) -> int:
    """The digest as a number.  Sums of these are taken modulo `DIGEST_MODULUS`."""
    return int.from_bytes(digest, "big")


def bucket_of(instance: InstanceKey, buckets: int) -> int:
    """The bucket of an instance, which is the same in every process and release."""
    return zlib.crc32("\0".join(instance).encode()) % buckets


def newest_first(samples: tuple[Sample, ...], depth: int) -> tuple[Sample, ...]:
    """The samples of an instance that are kept: distinct, newest first, none older than its newest deletion, at most
    ``depth``.

    This is a join: ``kept(kept(a) + kept(b)) == kept(a + b)``, in any order and any number of times.  A sample that one
    side dropped is older than a deletion, or than ``depth`` samples, and the union has these as well.
    """
    kept: list[Sample] = []
    for sample in sorted(set(samples), key=_order, reverse=True):
        kept.append(sample)
        if sample.is_delete or len(kept) == depth:
            break
    return tuple(kept)


def _order(sample: Sample) -> tuple[int, bytes, int]:
    return sample[3:6]
