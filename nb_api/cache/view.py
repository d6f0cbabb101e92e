"""What a controller follows: a whole local cache, or one table of it as instances of a class."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Generic

from nb_api.core.changes import DbObject, V_co

if TYPE_CHECKING:
    from nb_api.cache.local_cache import LocalCache


class CacheView(abc.ABC, Generic[V_co]):
    """The values of its objects are of one type; Any when they are read as they are stored."""

    @property
    @abc.abstractmethod
    def cache(self) -> LocalCache:
        """What it is a view of."""

    @property
    @abc.abstractmethod
    def only_table(self) -> str | None:
        """The one table that it shows; None: all."""

    @abc.abstractmethod
    def read(self, found: DbObject) -> DbObject[V_co]:
        """An object of the cache as this view shows it.  Raises ValueMismatch."""
