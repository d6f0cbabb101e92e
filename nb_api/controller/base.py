"""What `Controller` and the one for coroutines have in common."""

from __future__ import annotations

from nb_api.controller.core.keys import Key
from nb_api.controller.statistics import ControllerStatistics
from nb_api.controller.work import Work


class ControllerBase:
    """All that neither waits for work nor does it.  Every method may be called from any thread."""

    _work: Work
    _name: str

    @property
    def is_closed(self) -> bool:
        """`close` was called, or the controller has ended by itself, because its cache was closed for instance."""
        return self._work.is_stopping

    def enqueue(self, table: str, key: str, *, after_s: float = 0.0) -> bool:
        """Have a key worked on, now or later, whether it has changed or not.  Raises Closed, UsageError.

        False when another process has to: the key is in a shard that this one does not hold.  Then nothing is kept.
        """
        return self._work.enqueue(Key(table, key), after_s)

    def running(self) -> list[tuple[Key, float]]:
        """The keys that are being worked on, each with for how many seconds, the longest first."""
        return self._work.running()

    def statistics(self) -> ControllerStatistics:
        return self._work.statistics()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} {self._work.state}>"
