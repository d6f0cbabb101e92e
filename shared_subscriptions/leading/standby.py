"""A process that stands by for the leader of a group: it records too, so that nothing is lost should the leader die.

The leader's record names the member that is to stand by.  It stops when a leader records what follows, and not before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.candidate import LeaderRecord
from shared_subscriptions.leading.listener import LeadershipListener

_RELIEF_S = 60.0
"""A standby waits this long for a leader that records."""


class GroupStandby:
    """Of one group.  Owned by the leader's thread."""

    def __init__(
        self, group: str, owner: LeadershipListener, read_declaration: Callable[[], Declaration | None]
    ) -> None:
        """``read_declaration`` may raise LogError."""
        self._group = group
        self._owner = owner
        self._read_declaration = read_declaration
        self._is_standing_by = False
        self._stands_for = ""
        """The leader that it stands by for."""
        self._relief_by = float("inf")
        """When it stops, whether or not a leader records."""

    def update(self, leader: LeaderRecord | None, *, is_watching: bool) -> None:
        """Begin or end to stand by, as the leader's record says.  A process that does not watch has no leader, and ends
        at once.  Raises LogError."""
        is_wanted = leader is not None and bool(leader.standby) and self._owner.is_own(leader.standby)
        if leader is not None and is_wanted and self._is_standing_by:
            # For another leader than before: what came until that one records has to be appended as well.
            if leader.id != self._stands_for and self._is_relieved(leader):
                self._stands_for, self._relief_by = leader.id, float("inf")
                self._owner.on_handover(self._group)
            return
        if is_wanted == self._is_standing_by:
            return
        if leader is not None and is_wanted:
            self._stands_for = leader.id
        if is_watching and self._is_standing_by and not self._is_relieved(leader):
            return
        self._set(is_wanted=is_wanted)

    def end(self) -> None:
        if self._is_standing_by:
            self._set(is_wanted=False)

    def _is_relieved(self, leader: LeaderRecord | None) -> bool:
        if leader is not None and leader.is_recording:
            return True
        now = time.monotonic()
        if self._relief_by == float("inf"):
            self._relief_by = now + _RELIEF_S
            self._owner.on_handover(self._group)
        return now >= self._relief_by

    def _set(self, *, is_wanted: bool) -> None:
        self._relief_by = float("inf")
        declaration = self._read_declaration() if is_wanted else None
        self._is_standing_by = declaration is not None
        self._owner.on_standby(self._group, declaration)
