"""Digests of sets of objects, which a copy and a database compare.  Does no I/O.

A version is the revision of one change of one object, with bits by chance in it (`nb_api.revisions`): the
versions of a set of objects tell which set it is.  So the digest of a table is how many objects there are and the sum
of their versions.  A change costs an addition, in any order, and every database can add numbers up by itself.  Values
are not in it: they are compared in turns, a *bucket* of the objects after another.  The bucket is in the version too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

BUCKETS = 256
BUCKET_SHIFT = 8
"""The bits from here on say which bucket: there every driver has bits by chance, or those of a fast clock."""
_DIGITS = 32


def bucket_of(version: int) -> int:
    return version >> BUCKET_SHIFT & BUCKETS - 1


class TableDigest(NamedTuple):
    """Of the objects of a table, or of a bucket of them."""

    objects: int
    total: int
    """The sum of their versions."""

    def __str__(self) -> str:
        return f"{self.total:0{_DIGITS}x}"


NO_OBJECTS = TableDigest(0, 0)

DigestParts = Mapping[tuple[str, int], TableDigest]
"""By table and bucket; where buckets were not asked for, all is in bucket 0."""


class StoredDigests(msgspec.Struct, frozen=True):
    """What a database has, as of one revision."""

    revision: int
    parts: DigestParts


def add_up(versions: Iterable[tuple[str, int]], *, by_bucket: bool) -> dict[tuple[str, int], TableDigest]:
    """The digests of objects that are given as table and version."""
    parts: dict[tuple[str, int], TableDigest] = {}
    for table, version in versions:
        part = (table, bucket_of(version) if by_bucket else 0)
        objects, total = parts.get(part, NO_OBJECTS)
        parts[part] = TableDigest(objects + 1, total + version)
    return parts
