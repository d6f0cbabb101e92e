"""Whether a service knows that it is behind: then it does not tell readers that it is complete.

When the bus gives events up, a peer may have got and acknowledged them.  So from then on the set counts as behind,
until it was seen equal to, or was reconciled with, that of every peer of its epoch.  Under load sets are hardly ever
seen equal, and a reconciliation takes its time; after `PATIENCE_INTERVALS` it is over in any case, and what still comes
is told to readers like everything that comes late.
"""

from __future__ import annotations

from collections.abc import Iterable

PATIENCE_INTERVALS = 3
"""Of ``reconcile_s``."""


class Behind:
    """Of one name-space."""

    def __init__(self, reconcile_s: float) -> None:
        self._patience_s = PATIENCE_INTERVALS * reconcile_s
        self._since: float | None = None
        self._compared: set[str] = set()
        """Peers whose sets are known to be in ours, as they were when events were lost, or later."""

    @property
    def is_behind(self) -> bool:
        return self._since is not None

    def lost(self, now: float) -> None:
        """The bus gave events up that are to be kept here."""
        self._since = now
        self._compared.clear()

    def reconciled(self, node: str) -> None:
        self._compared.add(node)

    def look(self, now: float, peers: Iterable[tuple[str, bool, float]]) -> None:
        """These peers hold sets of our epoch: name, whether they said that it is equal to ours, and when they did."""
        if self._since is None:
            return
        known = list(peers)
        self._compared.update(node for node, is_equal, heard_at in known if is_equal and heard_at > self._since)
        if now - self._since >= self._patience_s or all(node in self._compared for node, _, _ in known):
            self._since = None

    def next_deadline(self) -> float:
        return float("inf") if self._since is None else self._since + self._patience_s
