"""The result of a verification, and the counters of verifications."""

from __future__ import annotations

import dataclasses
from typing import Literal

from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import CachedObject, is_same_value
from nb_api.core.digests import TableDigest

DifferenceKind = Literal["missing", "surplus", "stale", "ahead", "topic", "value"]
"""``missing``: the copy lacks the object; ``surplus``: the database lacks it, or the copy does not follow it;
``stale``: the copy has an older version; ``ahead``: it has a version that the database never had, or has lost;
``topic`` and ``value``: the versions are equal, but not these."""


@dataclasses.dataclass(frozen=True)
class ObjectDifference:
    """An object that is different in copy and database."""

    table: str
    key: str
    kind: DifferenceKind
    held: DbObject | None
    """The object in the copy."""
    stored: DbObject | None
    """The object in the database."""
    is_repaired: bool
    """False: a newer change has replaced it in the copy, or all objects are read again."""


@dataclasses.dataclass(frozen=True)
class TableProof:
    """The digests of one table in copy and database, at the revision of the verification."""

    table: str
    held: TableDigest
    stored: TableDigest


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of comparing a copy with its database."""

    revision: int
    """The revision of the database at which both were compared."""
    tables: tuple[TableProof, ...]
    differences: tuple[ObjectDifference, ...]
    objects: int
    """Objects whose versions were compared: all of them."""
    values: int
    """Objects whose values were compared, too; later verifications compare those of other objects."""
    late: int
    """Objects whose change had not arrived at first, and arrived during the verification."""

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclasses.dataclass
class VerifyCounters:
    """Counts verifications since the cache was made."""

    verifications: int = 0
    """Verifications with a result."""
    values: int = 0
    """Objects whose values were compared with those of the database."""
    late: int = 0
    """Objects whose change had not arrived at first, and arrived during the verification."""
    differences: int = 0
    """Objects that were different in copy and database.  Each is logged as an error: report it."""
    repaired: int = 0
    """Differences that were repaired at once."""
    unsettled: int = 0
    """Verifications that were not possible: the copy was being read, or the bus could not be reached."""
    failures: int = 0
    """Periodic verifications that failed for another reason, such as a database that cannot be reached."""


def kind_of(held: DbObject | CachedObject | None, stored: DbObject | None) -> DifferenceKind | None:
    """The difference between an object in the copy and in the database; None when they are equal."""
    if held is None or stored is None:
        return "surplus" if held is not None else None if stored is None else "missing"
    if held.version != stored.version:
        return "stale" if held.version < stored.version else "ahead"
    if held.topic != stored.topic:
        return "topic"
    return None if is_same_value(held.value, stored.value) else "value"
