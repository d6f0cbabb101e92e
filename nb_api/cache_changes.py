"""What a local cache tells its user: an object appeared, changed or went away, or the copy was brought up to date."""

from __future__ import annotations

from typing import Literal

import msgspec

from nb_api.db_api import DbObject

SyncKind = Literal["snapshot", "topics", "delta", "overrun"]
"""How a copy was brought up to date: by all objects, by those of topics that are new, or by the changes it had missed.
``overrun``: it is up to date, and what led there was not told one by one because nobody took it in time."""


class Created(msgspec.Struct, frozen=True):
    """An object is new to this copy."""

    object: DbObject


class Updated(msgspec.Struct, frozen=True):
    """An object has a newer version."""

    object: DbObject
    before: DbObject


class Deleted(msgspec.Struct, frozen=True):
    """An object is gone: deleted, moved to a topic that is not followed, or its topic is no longer followed."""

    object: DbObject
    """As it was last."""
    version: int
    """Of its end: the version of the tombstone, or as much of it as is known."""


class Resynced(msgspec.Struct, frozen=True):
    """The copy was compared with the database.  Every difference was told before this, unless ``kind`` is overrun."""

    kind: SyncKind
    reason: str
    revision: int
    """Of the database: the copy is at least as new."""
    created: int = 0
    updated: int = 0
    deleted: int = 0
    topics: tuple[str, ...] = ()
    """The filters that were read, when it was not everything."""

    @property
    def is_told(self) -> bool:
        """False: read the whole cache again, because single changes were left out."""
        return self.kind != "overrun"


Difference = Created | Updated | Deleted
CacheChange = Difference | Resynced
