"""Which filters a link declares for those that are wanted: each of them while they are few, broader ones beyond that.

Zenoh compares every frame with every declared filter, where it is sent and where it arrives, and every declaration with
those before it: with ten thousand of them a frame takes a millisecond and the declarations take many seconds.  So there
is a bound.  Beyond it filters are declared by their common beginnings, ``tenant-7/#`` for a thousand topics below it;
what that brings too much is dropped by the core, which has the last word about filters anyway.

Knows nothing of Zenoh and declares nothing itself.  Not thread-safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from pubsub_api.core import scopes

DECLARED_MAX = 256
"""Filters declared one by one.  With so many a frame costs about what sending it costs."""
BROAD_MAX = 64
"""What more of them are declared as.  Less than the above, so that there is room for what is added later."""


class InterestChange(NamedTuple):
    """What to declare, and then what to undeclare."""

    declare: list[str]
    undeclare: list[str]


class Interests:
    """What is wanted, and what is declared for it."""

    def __init__(self) -> None:
        self._declared_for: dict[str, str] = {}
        """Wanted filter -> the one that is declared for it, which may be broader."""
        self._users: Counter[str] = Counter()
        """Declared filter -> how many it is declared for."""
        self._broad: set[str] = set()
        """Those that are declared in place of others."""

    def add(self, filters: Iterable[str]) -> InterestChange:
        """More are wanted."""
        before = set(self._users)
        for topic_filter in filters:
            self._declare(topic_filter, self._covering(topic_filter))
        if len(self._users) > DECLARED_MAX:
            self._broaden()
        return InterestChange([name for name in self._users if name not in before], sorted(before - set(self._users)))

    def remove(self, topic_filter: str) -> InterestChange:
        """One is not wanted any more."""
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
        """The broadest filter declared for others that brings all of this one; else the filter itself."""
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
