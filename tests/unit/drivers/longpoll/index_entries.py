"""What a subscription index holds, read from its own attributes, for tests that look for leaks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TypeVar

from heliograph_drivers.pubsub.longpoll.core.index import SubscriptionIndex, _Node

S = TypeVar("S", bound=Hashable)


def filters_of(index: SubscriptionIndex[S], subscriber: S) -> set[str]:
    """What a subscriber has subscribed to, from the other direction."""
    return set(index._filters.get(subscriber, ()))


def entries(index: SubscriptionIndex[S]) -> Iterator[tuple[str, frozenset[S]]]:
    """Every filter with its subscribers, from the direction in which topics are matched."""
    for topic_filter, found in index._exact.items():
        yield topic_filter, frozenset(found if isinstance(found, set) else (found,))
    yield from _below(index._root, ())


def _below(node: _Node[S], path: tuple[str, ...]) -> Iterator[tuple[str, frozenset[S]]]:
    if node.here:
        yield "/".join(path), frozenset(node.here)
    if node.rest:
        yield "/".join((*path, "#")), frozenset(node.rest)
    for level, child in node.children.items():
        yield from _below(child, (*path, level))
