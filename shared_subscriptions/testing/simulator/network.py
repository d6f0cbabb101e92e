"""Messages between hosts: best effort, told by a seed how bad it is today."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub_api.testing.simulator.world import World
from shared_subscriptions.core import messages as m
from shared_subscriptions.testing.simulator.profiles import Profile

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.hosts import SimHost


class Network:
    """Host names are addresses.  The owner of the hosts sets ``deliver``."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.sent = 0
        self._profile = profile
        self.host_of: Callable[[str], SimHost | None] = lambda _name: None
        self.deliver: Callable[[str, str, m.Message], None] = lambda _source, _target, _message: None
        self.cut: set[frozenset[str]] = set()
        draw = world.random.random
        self._drop = profile.drop * draw()
        self._duplicate = profile.duplicate * draw()
        self._late = profile.late * draw()

    @property
    def is_orderly(self) -> bool:
        """Nothing is lost, late or cut, so that messages come as on a connection."""
        return not (self._profile.drop or self._profile.late or self._profile.partitions)

    def call(self, source: str, target: str, action: Callable[[SimHost], None]) -> None:
        """Do something at another host, as soon as a message would be there."""
        self.world.after(0.002 + self.world.between(0.0, 0.001), self._call, source, target, action)

    def _call(self, source: str, target: str, action: Callable[[SimHost], None]) -> None:
        host = self.host_of(target)
        if host is not None and frozenset((source, target)) not in self.cut:
            action(host)

    def heal(self) -> None:
        self._drop = self._duplicate = self._late = 0.0
        self.cut.clear()

    def send(self, source: str, target: str, message: m.Message) -> None:
        self.sent += 1
        # What is sent goes through the wire's own form, so that it is what a peer would decode.
        decoded: object
        if isinstance(message, m.TO_LEADER):
            _, decoded = m.decode_to_leader(m.encode(("g", message)))
        else:
            decoded = m.decode_to_borrower(m.encode(message))
        for _ in range(1 + self.world.chance(self._duplicate)):
            if not self.world.chance(self._drop):
                delay_s = self.world.between(0.1, 1.5) if self.world.chance(self._late) else 0.002
                self.world.after(delay_s + self.world.between(0.0, 0.001), self._arrive, source, target, decoded)

    def _arrive(self, source: str, target: str, message: m.Message) -> None:
        if frozenset((source, target)) not in self.cut:
            self.deliver(source, target, message)
