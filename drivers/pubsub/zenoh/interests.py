"""Chooses the filters that a link declares: each wanted filter while there are few, broader ones when there are many.

Zenoh compares every frame with every declared filter, both where it is sent and where it arrives, and every declaration
with the earlier ones: with ten thousand filters a frame takes a millisecond, and the declarations take many seconds.
So there is a limit.  Beyond it filters are declared by their common beginning, ``tenant-7/#`` for a thousand topics
below it.  The core filters every frame anyway, and drops those that no wanted filter matches.

It does not use Zenoh and declares nothing itself.  Not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from pubsub_api.core import scopes

DECLARED_MAX = 256
"""Filters that are declared one by one.  Comparing a frame with so many costs about as much as sending it."""
BROAD_MAX = 64
"""The number of broader filters when there are more.  It is less than `DECLARED_MAX`, which leaves room for filters
that are added later."""


class InterestChange(NamedTuple):
    """The filters to declare first, and those to undeclare then."""

    declare: list[str]
    undeclare: list[str]


class Interests:
    """The wanted filters, and the filters that are declared for them."""

    def __init__(self) -> None:
        self._declared_for: dict[str, str] = {}
        """Wanted filter -> the filter that is declared for it, which may be broader."""
        self._users: Counter[str] = Counter()
        """Declared filter -> for how many wanted filters it is declared."""
        self._broad: set[str] = set()
        """Declared filters that stand for several wanted ones."""

    def add(self, filters: Iterable[str]) -> InterestChange:
        """Want more filters."""
        before = set(self._users)
        for topic_filter in filters:
            self._declare(topic_filter, self._covering(topic_filter))
        if len(self._users) > DECLARED_MAX:
            self._broaden()
        return InterestChange([name for name in self._users if name not in before], sorted(before - set(self._users)))

    def remove(self, topic_filter: str) -> InterestChange:
        """Stop wanting a filter."""
        name = self._declared_for.pop(topic_filter)
        self._users[name] -= 1
        if self._users[name]:
            return InterestChange([], [])
        del self._users[name]
        self._broad.discard(name)
        return InterestChange([], [name])

    def _declare(self, topic_filter: str, name: str) -> None:
        self._declared_for[topic_filter] = name
        self._users[name] += 1

    def _covering(self, topic_filter: str) -> str:
        """The broadest declared filter that covers this one; else the filter itself."""
        above = scopes.above(scopes.scope_of(topic_filter)) if not topic_filter.startswith("$") else ()
        return next((name for name in above if name in self._broad), topic_filter)

    def _broaden(self) -> None:
        own = [name for name in self._declared_for if name.startswith("$")]
        others = ((scopes.scope_of(name), name) for name in self._declared_for if not name.startswith("$"))
        groups = scopes.group(others, BROAD_MAX)
        self._declared_for.clear()
        self._users.clear()
        self._broad.clear()
        for name in own:
            self._declare(name, name)
        for scope, names in groups.items():
            if len(names) > 1:
                self._broad.add(scope)
            for name in names:
                self._declare(name, scope if len(names) > 1 else name)
