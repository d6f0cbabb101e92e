"""The groups that a subscriber is a member of, and its subscriptions to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.consuming.reading import GroupLogReader
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.candidate import LeaderRecord
from shared_subscriptions.errors import GroupDestroyed
from shared_subscriptions.leading.group import Leading

_ENDED_KEPT = 100


@dataclasses.dataclass
class MemberGroup:
    """What belongs to one group in this process."""

    declaration: Declaration
    leading: Leading
    reader: GroupLogReader
    letters: DeadLetters
    leader: LeaderRecord | None = None
    """Which process the member talks to."""


class Memberships:
    """Changed under the subscriber's lock."""

    def __init__(self) -> None:
        self.groups: dict[str, MemberGroup] = {}
        self.filters: dict[str, int] = {}
        """Filters in use, as they were given -> number of the subscription."""
        self.destroyed: set[str] = set()
        self._names: dict[int, str] = {}
        """Subscription -> group, also of those that are ending."""
        self._moved: set[str] = set()
        self._serial = 0

    def subscribe(self, topic_filter: str, name: str) -> int:
        """Returns the number of the new subscription."""
        self._serial += 1
        self.filters[topic_filter] = self._serial
        self._names[self._serial] = name
        return self._serial

    def name_of(self, subscription: int) -> str:
        return self._names[subscription]

    def group_of(self, subscription: int) -> MemberGroup:
        return self.groups[self._names[subscription]]

    def forget_ended(self, living: Collection[int]) -> None:
        # Dispatchers may still hold an event of one that has just ended.
        for number in sorted(self._names.keys() - set(living))[:-_ENDED_KEPT]:
            del self._names[number]

    def is_leading(self) -> bool:
        """Whether this process leads one of the groups.  From any thread."""
        return any(group.leading.is_leading for group in list(self.groups.values()))

    # -- leaders

    def move(self, name: str, leader: LeaderRecord | None) -> None:
        """A group has another leader."""
        self.groups[name].leader = leader
        self._moved.add(name)

    def take_moved(self) -> dict[str, LeaderRecord | None]:
        """Groups whose leaders have changed since the last call."""
        moved, self._moved = self._moved, set()
        return {name: self.groups[name].leader for name in moved}

    # -- the end

    @property
    def is_gone(self) -> bool:
        """All groups were destroyed."""
        return bool(self.destroyed) and self.destroyed >= set(self.groups)

    def check_alive(self) -> None:
        if self.is_gone:
            raise GroupDestroyed(f"group {', '.join(sorted(self.destroyed))} was destroyed")
