"""What a verification has found, and what verifications count."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec

from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import CachedObject
from nb_api.core.digests import TableDigest

DifferenceKind = Literal["missing", "surplus", "stale", "ahead", "topic", "value"]
"""``missing``: the copy has not the object; ``surplus``: the database has it not, or not in what the copy follows;
``stale``: the copy has an older version; ``ahead``: it has a version that the database has never had, or has lost;
``topic`` and ``value``: it has the right version, and something else in it."""

_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclasses.dataclass(frozen=True)
class ObjectDifference:
    """An object that the copy has otherwise than the database."""

    table: str
    key: str
    kind: DifferenceKind
    held: DbObject | None
    """What the copy had."""
    stored: DbObject | None
    """What the database has."""
    is_repaired: bool
    """False: the copy has moved on by itself, or all objects are read again."""


@dataclasses.dataclass(frozen=True)
class TableProof:
    """The digests of one table as of the revision of the verification."""

    table: str
    held: TableDigest
    stored: TableDigest


@dataclasses.dataclass(frozen=True)
class Verification:
    """A copy was compared with its database."""

    revision: int
    """Of the database: the copy was compared with what it had then, however far both have come since."""
    tables: tuple[TableProof, ...]
    differences: tuple[ObjectDifference, ...]
    objects: int
    """Whose versions were compared: all of them."""
    values: int
    """Whose values were compared as well; when that is not all, the others have their turn later."""
    late: int
    """Objects whose change was on its way to the copy, and came."""

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclasses.dataclass
class VerifyCounters:
    """Verifications since the cache was made."""

    verifications: int = 0
    """That came to a result."""
    values: int = 0
    """Objects whose values were compared with those of the database."""
    late: int = 0
    """Objects whose change was still on its way while the copy was verified, and came."""
    differences: int = 0
    """Objects that were otherwise in the copy than in the database.  Each is logged as an error: report it."""
    repaired: int = 0
    """Of these, those that were put right at once."""
    unsettled: int = 0
    """Verifications that had to be put off: the copy was being read, or the bus was away."""
    failures: int = 0
    """Periodic verifications that failed otherwise, as when the database cannot be reached."""


def kind_of(held: DbObject | CachedObject | None, stored: DbObject | None) -> DifferenceKind | None:
    """How these differ; None when they do not."""
    if held is None or stored is None:
        return "surplus" if held is not None else None if stored is None else "missing"
    if held.version != stored.version:
        return "stale" if held.version < stored.version else "ahead"
    if held.topic != stored.topic:
        return "topic"
    return None if is_same_value(held.value, stored.value) else "value"


def is_same_value(one: object, other: object) -> bool:
    """Equal as msgpack: True is not 1, and the order of fields does not matter."""
    if _encode(one) == _encode(other):
        return True
    try:
        return _encode_sorted(one) == _encode_sorted(other)
    except (TypeError, ValueError):  # fields that have no order
        return one == other
