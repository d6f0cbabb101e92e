"""Scopes: what a question is about, in a form by which a transport can let it pass or not.

A question goes to everybody who answers questions, and answers hold events.  Where a transport restricts who may use
which topics (the ACL of Redis, the access control of Zenoh), questions and answers must not lead around that.  So a
question states its scope in the header of its frame, and a driver asks it, and has it answered, in a place that is
named after the scope.  A responder refuses a question about anything outside of its scope, and the asker refuses an
answer about anything outside of it.

A scope is a filter with no wildcard but ``#`` at its end: ``a/b``, ``a/#``, ``#``.  `CONTROL_TOPIC` stands for a
question that is not restricted: one of a subscriber on a driver that makes no difference, or one between services.

A question about filters of several scopes is asked once for each.  They are bounded: what would take more than
``scopes_max`` is asked in the scopes of their common beginnings, at last in ``#``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pubsub_api.core.errors import InvalidTopic
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet, check_filter, is_wildcard, literal_prefix

ALL = "#"
SCOPES_MAX = 64
"""Questions that one turns into, where the driver asks by scope."""

Item = TypeVar("Item")


def check_scope(scope: str) -> str:
    """Return ``scope`` when it is one; raise InvalidTopic with the reason otherwise."""
    if scope != CONTROL_TOPIC and "+" in check_filter(scope):
        raise InvalidTopic(f"scope {scope[:80]!r}: a scope has no wildcard but '#' at its end")
    return scope


def covers(scope: str, topic_filter: str) -> bool:
    """Whether all that a filter, or a topic, selects is inside the scope.  Both must have passed their check."""
    if scope in (topic_filter, CONTROL_TOPIC, ALL):
        return True
    if not scope.endswith("/#"):
        return False
    return topic_filter.startswith(scope[:-1]) or topic_filter == scope[:-2]


def scope_of(topic_filter: str) -> str:
    """The narrowest scope that covers a filter, or a topic."""
    return _below(literal_prefix(topic_filter)) if is_wildcard(topic_filter) else topic_filter


def scope_of_topic(topic: str, filters: FilterSet) -> str:
    """The scope in which a subscriber with these filters asks for events of a topic.

    That of the filter which selects it, so that one question does for many topics; but no broader than the first level,
    so that a responder for one tenant need not hear questions about all of them.
    """
    if topic in filters:
        return topic
    broad = {scope_of(wildcard) for wildcard in filters.wildcards}
    stem = ""
    for level in topic.split("/"):
        stem = f"{stem}/{level}" if stem else level
        if ALL in broad or _below(stem) in broad:
            return _below(stem)
    return topic


def group(items: Iterable[tuple[str, Item]], scopes_max: int) -> dict[str, list[Item]]:
    """Items by scope, in at most ``scopes_max`` of them, sorted.  Each item comes with its own scope."""
    groups: dict[str, list[Item]] = {}
    for scope, item in items:
        groups.setdefault(scope, []).append(item)
    groups = _merged(groups, lambda scope: scope)
    depth = max((len(_levels(scope)) for scope in groups), default=0)
    while len(groups) > scopes_max:
        depth -= 1
        groups = _merged(groups, lambda scope, depth=depth: _cut(scope, depth))  # type: ignore[misc]
    return dict(sorted(groups.items()))


def _merged(groups: dict[str, list[Item]], rename: Callable[[str], str]) -> dict[str, list[Item]]:
    """The groups under other names, those inside of another one as part of that."""
    names = {rename(scope) for scope in groups}
    merged: dict[str, list[Item]] = {}
    for scope, items in groups.items():
        name = rename(scope)
        merged.setdefault(next((broader for broader in above(name) if broader in names), name), []).extend(items)
    return merged


def above(scope: str) -> Iterator[str]:
    """Scopes with a wildcard that cover the scope, from the broadest on."""
    levels = _levels(scope)
    return (_below("/".join(levels[:depth])) for depth in range(len(levels) + 1))


def _cut(scope: str, depth: int) -> str:
    levels = _levels(scope)
    return scope if len(levels) <= depth else _below("/".join(levels[:depth]))


def _levels(scope: str) -> list[str]:
    """The levels before ``#``, all of them in a topic."""
    stem = literal_prefix(scope)
    return stem.split("/") if stem else []


def _below(stem: str) -> str:
    return f"{stem}/#" if stem else ALL
