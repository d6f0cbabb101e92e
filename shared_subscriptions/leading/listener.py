"""What the owner of a group in this process is told of its leadership, and asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.candidate import LeaderRecord


@dataclasses.dataclass(frozen=True)
class LeadershipListener:
    """All of it is called from the leader's thread."""

    on_leader: Callable[[LeaderRecord | None], None] = lambda _leader: None
    """Which process leads."""
    on_rule: Callable[[str, Declaration | None], None] = lambda _group, _declaration: None
    """This process begins to lead a group or, with None, ends."""
    on_standby: Callable[[str, Declaration | None], None] = lambda _group, _declaration: None
    """The leader wants this process to stand by to record, or with None no longer."""
    on_handover: Callable[[str], None] = lambda _group: None
    """The leader that this process stands by for is gone, and the next one does not record yet: append what was heard,
    and go on."""
    is_recording: Callable[[str], bool] | None = None
    """Whether this process, which leads the group, hears what is published; None when it does not record."""
    on_destroyed: Callable[[], None] = lambda: None
    """The group is gone."""
    is_own: Callable[[str], bool] = lambda _borrower: False
    """Whether a borrower is of this process."""
