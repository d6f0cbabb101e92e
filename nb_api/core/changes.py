"""Objects of a database, changes that were committed and writes that are asked for.  Plain data.

`nb_api.db_api`, the contract of a driver, has them under its own name too.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Action = Literal["create", "set", "delete"]


class DbObject(msgspec.Struct, frozen=True):
    """An object as it is stored."""

    table: str
    key: str
    topic: str
    value: Any
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


class Write(msgspec.Struct, frozen=True, gc=False):
    """A change that is asked for.  A ``create`` needs a topic and expects no version; a ``delete`` has no value."""

    action: Action
    table: str
    key: str
    value: Any = None
    topic: str | None = None
    """None in a ``set`` keeps the topic."""
    expected_version: int | None = None
