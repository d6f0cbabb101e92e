"""What a reconcile function is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from nb_api.controller.core.keys import Key, RequeueAfter
from nb_api.core.changes import DbObject, V_co
from nb_api.core.copy.differences import Ending

if TYPE_CHECKING:
    from nb_api.cache.local_cache import LocalCache

T = TypeVar("T")


class RequestBase(msgspec.Struct, Generic[V_co], frozen=True):
    """A key to bring into order, with what the copy has under it now.  With `nb_api.models` values are instances."""

    table: str
    key: str
    object: DbObject[V_co] | None
    """As the copy has it at the begin of the run; None when it is not there."""
    deleted: DbObject[V_co] | None
    """When it is not there: as it was last, if that is known, and fits the class of the controller's table.  It stays
    known until a run has succeeded with it, or has given up."""
    ending: Ending | None
    """Why it is not there any more, as far as that is known together with ``deleted``: it may have moved away.

    The first run without the object has it, unless changes could not be told one by one.  None says that it is not
    known, or was told before, and not that the object was deleted: ask the database before something is destroyed.
    """
    attempt: int
    """1, and one more for each failure before."""
    token: int | None
    """The fencing token, when the controller has an election: higher for every leader than for all before."""
    asks_to_stop: Callable[[], bool]

    @property
    def is_stopping(self) -> bool:
        """The controller is being closed, or leads no longer: what takes long should come to an end."""
        return self.asks_to_stop()

    def __str__(self) -> str:
        return str(Key(self.table, self.key))


class Request(RequestBase[V_co], Generic[V_co], frozen=True):
    """What `Controller` gives to its function: a key to bring into order, with what the copy has under it now."""

    cache: LocalCache


Reconcile = Callable[[Request[T]], RequeueAfter | None]
"""Makes the world look like the copy, as far as one key is concerned.  It is called again when it raises."""
