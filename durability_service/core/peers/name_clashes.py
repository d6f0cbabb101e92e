"""Another service with our own name: a machine that was cloned, or a name that was given twice.

Peers cannot tell the two apart, so only one of them may serve: the one that has been running longer.  The younger
ends, with an error.  One that is younger than we are is another service.  One that is older may also be a former life
of ours, whose messages come late: it is alive when it says that it hears us as we are now.
"""

from __future__ import annotations

from durability_service.core.messages import Advert


class NameClashes:
    """Other services that have our name."""

    def __init__(self, node: str, incarnation: int, expiry_s: float) -> None:
        self._node = node
        self._incarnation = incarnation
        self._expiry_s = expiry_s
        self._heard: tuple[int, float] | None = None
        """Incarnation of the other, and when it was last heard."""
        self._is_proven = False
        self.clashes = 0
        """How often another service with our name was found alive."""

    def received(self, advert: Advert, now: float) -> bool:
        """An advert with our name came, and not from us.  True when it proves that its sender is another service."""
        if advert.is_terminating:
            self._heard, self._is_proven = None, False
            return False
        if self._heard is None or self._heard[0] != advert.incarnation:
            self._is_proven = False
        self._heard = (advert.incarnation, now)
        is_other = advert.incarnation > self._incarnation or advert.heard.get(self._node) == self._incarnation
        is_news = is_other and not self._is_proven
        if is_news:
            self._is_proven = True
            self.clashes += 1
        return is_news

    def heard(self, now: float) -> dict[str, int]:
        """What we say of it in our adverts."""
        is_there = self._heard is not None and now - self._heard[1] <= self._expiry_s
        return {self._node: self._heard[0]} if self._heard and is_there else {}

    @property
    def is_ours_to_end(self) -> bool:
        """Whether this service must end, and not the other."""
        return self._is_proven and self._heard is not None and self._heard[0] <= self._incarnation

    def warnings(self, now: float) -> list[str]:
        if not self._is_proven or not self.heard(now):
            return []
        return [f"another service is named {self._node!r}: give each [durability] node and store of its own"]
