"""Errors of shared subscriptions, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from pubsub_api.errors import HeliographError, UsageError

__all__ = [
    "GroupDestroyed",
    "GroupError",
    "GroupExists",
    "GroupNotFound",
    "NotAGroupEvent",
]


class GroupError(HeliographError):
    """A group could not do what was asked."""


class GroupNotFound(GroupError):
    """No group of that name is declared."""


class GroupExists(GroupError):
    """A group of that name is declared already, with another filter, mode or number of lanes."""


class GroupDestroyed(GroupError):
    """The group was destroyed while this program was a member of it."""


class NotAGroupEvent(UsageError):
    """Only events that a shared subscription delivered can be acknowledged."""
