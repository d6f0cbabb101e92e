"""Messages between hosts: best effort, told by a seed how bad it is today."""

from __future__ import annotations

from collections.abc import Callable

from pubsub_api.testing.simulator.world import World
from shared_subscriptions.core import messages as m
from shared_subscriptions.testing.simulator.profiles import Profile


class Network:
    """Host names are addresses.  ``deliver`` is set by who owns the hosts."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.sent = 0
        self.deliver: Callable[[str, str, m.Message], None] = lambda _source, _target, _message: None
        self.cut: set[frozenset[str]] = set()
        draw = world.random.random
        self._drop = profile.drop * draw()
        self._duplicate = profile.duplicate * draw()
        self._late = profile.late * draw()

    def heal(self) -> None:
        self._drop = self._duplicate = self._late = 0.0
        self.cut.clear()

    def send(self, source: str, target: str, message: m.Message) -> None:
        self.sent += 1
        # What is sent goes through the wire's own form, so that it is what a peer would decode.
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
