"""What the parts of a name-space need of the service that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from durability_service.core.effects import Level, StoreOperation
from durability_service.core.keeping.holding import Holding
from durability_service.core.messages import Message
from durability_service.core.settings import ServiceSettings


class ServiceContext(Protocol):
    settings: ServiceSettings
    now: float

    def send(self, message: Message) -> None: ...

    def store(
        self, holding: Holding, operations: Sequence[StoreOperation], then: Callable[[], None] = lambda: None
    ) -> None:
        """Have the operations done, in order; call ``then`` when they are durable."""

    def trace(self, level: Level, what: str, **fields: Any) -> None: ...

    def stamp(self) -> int:
        """The time as a hybrid logical clock value."""

    def request_number(self) -> int: ...

    def askers(self, name_space: str) -> Set[str]:
        """Connected peers of our role that have no complete set."""

    def acknowledge(self, token: int) -> None:
        """One of the name-spaces to which an event of the bus belonged has made it durable."""

    def refuse(self, token: int) -> None:
        """One of them did not take it: it is not acknowledged, even if the others did."""

    def has_unanswered_peers(self) -> bool:
        """Whether a peer was heard that has not had the time to hear us."""
