"""Topics, topic filters and the one matcher that decides which events a subscriber gets.

A topic is a path of non-empty levels, ``tenant-7/port``.  A filter may use ``+`` for exactly one level and a trailing
``#`` for any number of levels: ``a/#`` matches ``a``, ``a/b`` and ``a/b/c``.  Names that begin with ``$`` belong to
Heliograph itself, and no filter matches them.

Characters that have a special meaning on one of the transports are refused on all, so that a topic that works with one
driver works with all of them.  Drivers may deliver more than a filter selects; this module decides what a subscriber
gets.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pubsub_api.core.errors import InvalidTopic

TOPIC_BYTES_MAX = 512
CONTROL_TOPIC = "$control"
"""For messages about a publisher as a whole: its start, its heartbeat, its end.  Every subscriber listens to it."""

_CHECKED_TOPICS_MAX = 1024
"""Half a megabyte of the longest topics."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f+#*?$]")


def check_topic(topic: str) -> str:
    """Return ``topic``.  Raises InvalidTopic with the reason when no event may have it."""
    if not isinstance(topic, str):
        raise InvalidTopic(f"a topic must be a str, not {type(topic).__name__}")
    _check_spelling(topic)
    return topic


@functools.lru_cache(maxsize=_CHECKED_TOPICS_MAX)
def _check_spelling(topic: str) -> None:
    """Remembers correct topics: a program uses the same ones again and again."""
    _check_shape(topic, "topic")
    bad = _FORBIDDEN.search(topic)
    if bad:
        raise InvalidTopic(f"topic {topic[:80]!r} contains {bad.group()!r}, which is reserved")


def check_filter(topic_filter: str) -> str:
    """Return ``topic_filter``.  Raises InvalidTopic with the reason when no subscriber may use it."""
    _check_shape(topic_filter, "filter")
    levels = topic_filter.split("/")
    for position, level in enumerate(levels):
        if level == "+" or (level == "#" and position == len(levels) - 1):
            continue
        bad = _FORBIDDEN.search(level)
        if bad and bad.group() in "+#":
            raise InvalidTopic(
                f"filter {topic_filter[:80]!r}: {bad.group()!r} must stand alone in its level, '#' only at the end"
            )
        if bad:
            raise InvalidTopic(f"filter {topic_filter[:80]!r} contains {bad.group()!r}, which is reserved")
    return topic_filter


def _check_shape(name: str, what: str) -> None:
    if not isinstance(name, str):
        raise InvalidTopic(f"a {what} must be a str, not {type(name).__name__}")
    if not name:
        raise InvalidTopic(f"a {what} must not be empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidTopic(f"{what} {name[:80]!r} is not valid Unicode: {error.reason}") from error
    if size > TOPIC_BYTES_MAX:
        raise InvalidTopic(f"a {what} of {size} bytes is longer than {TOPIC_BYTES_MAX}")
    for level in name.split("/"):
        if not level:
            raise InvalidTopic(f"{what} {name[:80]!r} has an empty level")
        if level.startswith("@"):
            raise InvalidTopic(f"{what} {name[:80]!r} has a level that starts with '@', which is reserved")


def is_wildcard(topic_filter: str) -> bool:
    """True when the filter can match another topic than itself."""
    return "+" in topic_filter or "#" in topic_filter


def literal_prefix(topic_filter: str) -> str:
    """The levels before the first wildcard, joined, without a trailing slash: ``a/b/+/c`` gives ``a/b``.

    A transport that can only match prefixes subscribes to it; it delivers too much, never too little.
    """
    levels: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            break
        levels.append(level)
    return "/".join(levels)


def matches(topic_filter: str, topic: str) -> bool:
    """Whether the filter selects the topic.  Both must have been checked."""
    if topic_filter == topic:
        return True
    return _match_levels(topic_filter.split("/"), topic.split("/")) and not topic.startswith("$")


def overlap(one: str, other: str) -> bool:
    """Whether there can be a topic that both filters, or topics, select.  Both must have been checked."""
    if one == other:
        return True
    if one.startswith("$") or other.startswith("$"):
        return False
    left, right = one.split("/"), other.split("/")
    for mine, yours in itertools.zip_longest(left, right):
        if "#" in (mine, yours):
            return True
        if mine is None or yours is None or (mine != yours and "+" not in (mine, yours)):
            return False
    return True


def _match_levels(wanted: list[str], levels: list[str]) -> bool:
    for position, want in enumerate(wanted):
        if want == "#":
            return True
        if position == len(levels):
            return False
        if want not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)


_Tree = dict[str, Any]
"""Level -> the tree of the following levels.  The key "" marks that a filter ends here; no level is empty."""
_END = ""


class FilterSet:
    """A set of filters that tells whether any of them matches a topic.

    All exact filters together cost one look-up.  Wildcards share a tree by level, so that their cost depends on the
    levels of the topic only: a thousand filters ``tenant-N/#`` cost as much as one.
    """

    __slots__ = ("_exact", "_tree", "_wildcards")

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self._exact: set[str] = set()
        self._wildcards: dict[str, None] = {}
        self._tree: _Tree = {}
        for topic_filter in filters:
            self.add(topic_filter)

    def add(self, topic_filter: str) -> bool:
        """Add a filter; True when it is new.  Raises InvalidTopic."""
        check_filter(topic_filter)
        if topic_filter in self:
            return False
        if is_wildcard(topic_filter):
            self._wildcards[topic_filter] = None
            tree = self._tree
            for level in topic_filter.split("/"):
                tree = tree.setdefault(level, {})
            tree[_END] = {}
        else:
            self._exact.add(topic_filter)
        return True

    def discard(self, topic_filter: str) -> bool:
        """Remove a filter; True when it was there."""
        if topic_filter in self._exact:
            self._exact.remove(topic_filter)
            return True
        if topic_filter not in self._wildcards:
            return False
        del self._wildcards[topic_filter]
        path = [(self._tree, level) for level in (*topic_filter.split("/"), _END)]
        for at in range(1, len(path)):
            before, level = path[at - 1]
            path[at] = (before[level], path[at][1])
        for tree, level in reversed(path):
            del tree[level]
            if tree:
                break
        return True

    def match(self, topic: str) -> bool:
        if topic in self._exact:
            return True
        if not self._wildcards or topic.startswith("$"):
            return False
        trees = [self._tree]
        for level in topic.split("/"):
            if any("#" in tree for tree in trees):
                return True
            trees = [tree[name] for tree in trees for name in (level, "+") if name in tree]
            if not trees:
                return False
        return any("#" in tree or _END in tree for tree in trees)

    @property
    def wildcards(self) -> Iterable[str]:
        """The filters that can match more than one topic."""
        return self._wildcards

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._exact or topic_filter in self._wildcards

    def __iter__(self) -> Iterator[str]:
        return iter((*self._exact, *self._wildcards))  # a copy: another thread may add one

    def __len__(self) -> int:
        return len(self._exact) + len(self._wildcards)
