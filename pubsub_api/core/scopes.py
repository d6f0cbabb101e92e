"""Scopes: which topics a query is about, in a form that the access control of a transport can use.

A query goes to all responders, and their answers contain events.  Where a transport restricts the use of topics (the
ACL of Redis, the access control of Zenoh), queries must not evade that.  So a query has its scope in the header of its
frame, and a driver sends the query and its answers under a name that contains the scope.  A responder refuses a query
about topics outside of its scope, and the subscriber refuses such an answer.

A scope is a filter with no wildcard but ``#`` at its end: ``a/b``, ``a/#``, ``#``.  `CONTROL_TOPIC` is the scope of
queries without restriction: those on drivers that do not ask by scope, and those between services.

A query about filters of several scopes is sent once for each.  Their number is bounded: beyond ``scopes_max``, scopes
are replaced by the scopes of their common beginnings, in the end by ``#``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pubsub_api.core.errors import InvalidTopic
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet, check_filter, is_wildcard, literal_prefix

ALL = "#"
SCOPES_MAX = 64
"""Most queries that one query is divided into, where the driver asks by scope."""

Item = TypeVar("Item")


def check_scope(scope: str) -> str:
    """Return ``scope``.  Raises InvalidTopic with the reason when it is no scope."""
    if scope != CONTROL_TOPIC and "+" in check_filter(scope):
        raise InvalidTopic(f"scope {scope[:80]!r}: a scope has no wildcard but '#' at its end")
    return scope


def covers(scope: str, topic_filter: str) -> bool:
    """Whether the scope contains all topics that a filter selects, or a topic.  Both must have been checked."""
    if scope in (topic_filter, CONTROL_TOPIC, ALL):
        return True
    if not scope.endswith("/#"):
        return False
    return topic_filter.startswith(scope[:-1]) or topic_filter == scope[:-2]


def scope_of(topic_filter: str) -> str:
    """The narrowest scope that covers a filter, or a topic."""
    return _all_below(literal_prefix(topic_filter)) if is_wildcard(topic_filter) else topic_filter


def scope_of_topic(topic: str, filters: FilterSet) -> str:
    """The scope in which a subscriber with these filters asks for events of a topic.

    It is the scope of the filter that selects the topic, so that one query is enough for many topics; but at most the
    first level, so that a responder for one tenant need not receive queries about all tenants.
    """
    if topic in filters:
        return topic
    broad = {scope_of(wildcard) for wildcard in filters.wildcards}
    beginning = ""
    for level in topic.split("/"):
        beginning = f"{beginning}/{level}" if beginning else level
        if ALL in broad or _all_below(beginning) in broad:
            return _all_below(beginning)
    return topic


def group(items: Iterable[tuple[str, Item]], scopes_max: int) -> dict[str, list[Item]]:
    """Scope -> its items, with at most ``scopes_max`` scopes, sorted.  Each item is given with its own scope."""
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
    """The groups under new scopes.  A group whose new scope is inside of that of another group becomes a part of it."""
    names = {rename(scope) for scope in groups}
    merged: dict[str, list[Item]] = {}
    for scope, items in groups.items():
        name = rename(scope)
        merged.setdefault(next((broader for broader in above(name) if broader in names), name), []).extend(items)
    return merged


def above(scope: str) -> Iterator[str]:
    """Scopes with a wildcard that cover the scope, the broadest first."""
    levels = _levels(scope)
    return (_all_below("/".join(levels[:depth])) for depth in range(len(levels) + 1))


def _cut(scope: str, depth: int) -> str:
    """The scope, or the scope of its first ``depth`` levels if it has more."""
    levels = _levels(scope)
    return scope if len(levels) <= depth else _all_below("/".join(levels[:depth]))


def _levels(scope: str) -> list[str]:
    """The levels before ``#``; all levels of a topic."""
    beginning = literal_prefix(scope)
    return beginning.split("/") if beginning else []


def _all_below(beginning: str) -> str:
    return f"{beginning}/#" if beginning else ALL
