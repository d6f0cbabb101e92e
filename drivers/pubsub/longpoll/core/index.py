"""The subscriptions at a publisher: filter -> subscribers, and back.

A topic without wildcards is one look-up in a dict, for any number of subscriptions.  Filters with wildcards are in a
tree of levels, so that the cost of a topic is its depth and the number of subscribers found.  An entry costs a few
hundred bytes at most: a filter with a single subscriber, which is usual when every subscriber has its own keys, needs
no set.  Empty entries are removed.

Not thread-safe.  Subscribers are any hashable objects that are not sets.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from pubsub_api.core.topics import is_wildcard

S = TypeVar("S", bound=Hashable)


class _Node(Generic[S]):
    """A level of the filters with wildcards."""

    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] = {}
        self.here: set[S] = set()
        """Subscribers whose filter ends at this level."""
        self.rest: set[S] = set()
        """Subscribers whose filter ends with ``#`` below this level."""

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.here or self.rest)


class SubscriptionIndex(Generic[S]):
    """Both directions of the relation between filters and subscribers, always consistent."""

    def __init__(self) -> None:
        self._exact: dict[str, S | set[S]] = {}
        self._root: _Node[S] = _Node()
        self._filters: dict[S, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many subscriptions there are: pairs of a subscriber and a filter."""
        return self._count

    def add(self, subscriber: S, topic_filter: str) -> bool:
        """Add a subscription; returns whether it is new.  The caller has checked the filter."""
        filters = self._filters.get(subscriber)
        if filters is None:
            filters = self._filters[subscriber] = set()
        elif topic_filter in filters:
            return False
        if is_wildcard(topic_filter):
            self._node(topic_filter).add(subscriber)
        else:
            self._add_exact(subscriber, topic_filter)
        filters.add(topic_filter)
        self._count += 1
        return True

    def remove(self, subscriber: S, topic_filter: str) -> bool:
        """Remove a subscription; returns whether it existed."""
        filters = self._filters.get(subscriber)
        if filters is None or topic_filter not in filters:
            return False
        filters.remove(topic_filter)
        if not filters:
            del self._filters[subscriber]
        self._count -= 1
        if is_wildcard(topic_filter):
            self._remove_wildcard(self._root, topic_filter.split("/"), subscriber)
        else:
            self._remove_exact(subscriber, topic_filter)
        return True

    def remove_subscriber(self, subscriber: S) -> int:
        """Forget a subscriber; returns how many subscriptions it had."""
        filters = list(self._filters.get(subscriber, ()))
        for topic_filter in filters:
            self.remove(subscriber, topic_filter)
        return len(filters)

    def match(self, topic: str) -> Collection[S]:
        """The subscribers that get a frame on ``topic``, each once.  Do not change the index while iterating."""
        found = self._exact.get(topic)
        exact: Collection[S] = () if found is None else found if isinstance(found, set) else (found,)
        # No wildcard matches Heliograph's own topics.
        if self._root.is_empty or topic.startswith("$"):
            return exact
        matched = set(exact)
        self._collect(topic.split("/"), matched)
        return matched

    def matches(self, subscriber: S, topic: str) -> bool:
        return subscriber in self.match(topic)

    # -- exact topics

    def _add_exact(self, subscriber: S, topic: str) -> None:
        found = self._exact.get(topic)
        if found is None:
            self._exact[topic] = subscriber
        elif isinstance(found, set):
            found.add(subscriber)
        else:
            self._exact[topic] = {found, subscriber}

    def _remove_exact(self, subscriber: S, topic: str) -> None:
        found = self._exact[topic]
        if not isinstance(found, set):
            del self._exact[topic]
            return
        found.remove(subscriber)
        if len(found) == 1:
            self._exact[topic] = found.pop()

    # -- wildcards

    def _node(self, topic_filter: str) -> set[S]:
        """The set of subscribers of a filter, which is made if needed."""
        levels = topic_filter.split("/")
        is_open = levels[-1] == "#"
        node = self._root
        for level in levels[:-1] if is_open else levels:
            node = node.children.setdefault(level, _Node())
        return node.rest if is_open else node.here

    def _remove_wildcard(self, node: _Node[S], levels: list[str], subscriber: S) -> None:
        if not levels or levels == ["#"]:
            (node.rest if levels else node.here).remove(subscriber)
            return
        child = node.children[levels[0]]
        self._remove_wildcard(child, levels[1:], subscriber)
        if child.is_empty:
            del node.children[levels[0]]

    def _collect(self, levels: list[str], matched: set[S]) -> None:
        nodes = [self._root]
        for level in levels:
            further: list[_Node[S]] = []
            for node in nodes:
                matched |= node.rest
                further += [node.children[name] for name in (level, "+") if name in node.children]
            nodes = further
        for node in nodes:
            matched |= node.rest | node.here
