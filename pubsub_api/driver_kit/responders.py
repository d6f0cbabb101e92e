"""How many responders a query reached, where each link of a subscriber learns its number later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class ResponderCount:
    """Adds the numbers of all links, and calls ``report`` with the sum once each link has given its number.

    When a link is lost before that, the sum is not known and is never reported.  Thread-safe.
    """

    def __init__(self, links: int, report: Callable[[int], None]) -> None:
        self._links = links
        self._missing = links
        """Links that have not given their number."""
        self._report = report
        self._lock = threading.Lock()
        self._total = 0

    def ask(self, queries: Iterable[Callable[[Callable[[int], None]], bool]]) -> bool:
        """Call each link's function to send the query; the argument is where the link gives its number (`add`).

        A function returns False when its link cannot send.  Returns False when no link can.
        """
        refusals = sum(not query(self.add) for query in queries)
        if refusals == self._links:
            return False
        for _ in range(refusals):
            self.add(0)
        return True

    def add(self, responders: int) -> None:
        """One link reached that many."""
        with self._lock:
            self._missing -= 1
            self._total += responders
            is_complete = self._missing == 0
        if is_complete:
            self._report(self._total)
