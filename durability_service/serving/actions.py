"""Deletions and snapshots that clients asked for: each is done once, and its outcome is told with the status."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from durability_service import protocol
from durability_service.core.effects import DeleteHistory
from durability_service.protocol import Ask
from durability_service.storage.writer import StoreWriter

_ACTIONS_MAX = 1000
_DONE = "done"


class Actions:
    """Not thread-safe: the owner calls under its lock.  ``delete`` has the core delete history."""

    def __init__(
        self, delete: Callable[[DeleteHistory], None], writer: StoreWriter | None, snapshot_directory: str
    ) -> None:
        self._delete = delete
        self._writer = writer
        self._snapshot_directory = snapshot_directory
        self._waiting: list[tuple[int, str]] = []
        """Number of an operation of the store, and the action that is done when it is durable."""
        self.outcomes: OrderedDict[str, str] = OrderedDict()
        """Action -> what became of it; empty while it is under way."""

    def is_known(self, ask: Ask) -> bool:
        return str(ask.action) in self.outcomes

    def begin(self, ask: Ask) -> None:
        action, writer = str(ask.action), self._writer
        if len(self.outcomes) >= _ACTIONS_MAX:
            self.outcomes.popitem(last=False)
        self.outcomes[action] = ""
        if ask.durability == protocol.DELETE:
            self._delete(DeleteHistory(ask.topics))
            if writer and writer.lag:
                self._waiting.append((writer.queued, action))
            else:
                self.outcomes[action] = _DONE
        elif writer is None or not self._snapshot_directory:
            self.outcomes[action] = "failed: this service has no [durability] store or no snapshot_directory"
        else:
            writer.snapshot(ask.action, ask.topics or ["#"])

    def stored(self, operation: int) -> None:
        """Everything up to this operation is durable."""
        for number, action in self._waiting:
            if number <= operation:
                self.outcomes[action] = _DONE
        self._waiting = [one for one in self._waiting if one[0] > operation]
