"""Objects of a database, changes that were committed and writes that are asked for.  Plain data.

`nb_api.db_api`, the contract of a driver, has them under its own name too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

import msgspec

from pubsub_api.core.headers import NO_HEADERS, HeadersField

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)

Action = Literal["create", "set", "delete"]
"""What happened to an object, as the feed and the bus say it."""
WriteAction = Literal["create", "set", "delete", "put"]
"""What can be asked for.  A ``put`` becomes a ``create`` or a ``set``, whichever it takes."""


class DbObject(msgspec.Struct, Generic[V_co], frozen=True):
    """An object as it is stored.  ``value`` is plain data, or an instance of the class that is declared for its table
    where the reader has asked for that (`nb_api.models`)."""

    table: str
    key: str
    topic: str
    value: V_co
    version: int


class Change(msgspec.Struct, frozen=True, gc=False):
    """One committed change.  ``value`` is None for a delete, and ``topic`` is the one the object had until then.

    As with events, the garbage collector does not look at changes.
    """

    revision: int
    action: Action
    table: str
    key: str
    topic: str
    value: Any = None
    left_topic: str | None = None
    """The topic that a ``set`` moved the object away from: subscribers that follow only this topic drop the object."""
    headers: HeadersField = NO_HEADERS
    """Of the events that tell of it.  No database keeps them: what is read from one has none."""


class Write(msgspec.Struct, frozen=True, gc=False):
    """A change that is asked for.  A ``create`` or ``put`` needs a topic; a ``create`` expects no version; a ``delete``
    has no value."""

    action: WriteAction
    table: str
    key: str
    value: Any = None
    topic: str | None = None
    """None in a ``set`` keeps the topic."""
    expected_version: int | None = None
    if_changed: bool = False
    """A ``set`` of the value and the topic that the object has already writes nothing.  A ``put`` never does."""


class Written(NamedTuple):
    """What became of a write that was not refused."""

    version: int
    """Of the object from now on: the revision of the change, or what it was before when there was none."""
    action: Action | None
    """As the feed shows it; None when nothing was written, because the object was so already."""
    topic: str
    """Of a delete the one that the object had."""
    left_topic: str | None = None
    """The topic that the object was moved away from, if it was."""
