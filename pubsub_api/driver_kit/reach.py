"""How many responders a query reached, where each link of a subscriber learns its part of the number later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class Reach:
    """Adds up what the links say and tells the total once all of them have spoken.  Thread-safe.

    A link that dies before it speaks keeps the total from being told, which is right: it is not known then.
    """

    def __init__(self, links: int, tell: Callable[[int], None]) -> None:
        self._asked = links
        self._links = links
        self._tell = tell
        self._lock = threading.Lock()
        self._total = 0

    def ask(self, askers: Iterable[Callable[[Callable[[int], None]], bool]]) -> bool:
        """Have each link ask, telling it whom to tell; False when none of them would."""
        refusals = [ask for ask in askers if not ask(self.add)]
        if len(refusals) == self._asked:
            return False
        for _ in refusals:
            self.add(0)
        return True

    def add(self, responders: int) -> None:
        """One link reached that many."""
        with self._lock:
            self._links -= 1
            self._total += responders
            is_complete = self._links == 0
        if is_complete:
            self._tell(self._total)
