"""Sources of the past for subscribers that come late: the contract, and how the installed one is found.

A source is an entry point of the namespace ``heliograph.history_source``, under the name
`SOURCE`.  The bus knows none of them; it only asks.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pubsub_api.core.durability import Durability, HistoryOutcome
from pubsub_api.core.events import Event
from pubsub_api.runtime.plugins import Plugins

if TYPE_CHECKING:
    from pubsub_api.session import Session

NAMESPACE = "heliograph.history_source"
SOURCE = "durability"
"""Name of the source that is asked unless a program brings its own, ``past=source``."""

OnPage = Callable[[Sequence[Event]], None]
OnChange = Callable[[bool], None]
"""What was read is not all any more.  True: what was read may also be gone, or older than it was."""


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A subscriber asks for more than is kept."""

    topic_filter: str
    asked: Durability
    offered: Durability
    """The strongest that any service keeps of some of these topics."""

    def __str__(self) -> str:
        return f"{self.topic_filter}: {self.asked.name} is asked for, and {self.offered.name} is what is kept"


class HistorySource(abc.ABC):
    """The past, for one subscriber, which closes it.  Any thread may call; reads do not overlap."""

    @abc.abstractmethod
    def __init__(self, session: Session, topics: Sequence[str], durability: Durability) -> None:
        """``topics`` are the filters that the subscriber begins with, ``durability`` is the weakest that it is content
        with.  Connects, and does not wait for it."""

    @property
    @abc.abstractmethod
    def asks_publishers(self) -> bool:
        """Whether publishers are to be asked for what they remember themselves: some topics are TRANSIENT_LOCAL."""

    @property
    def publishers_wait_s(self) -> float | None:
        """How long publishers are waited for before it is said that there is none; None: as long as it takes."""
        return None

    @abc.abstractmethod
    def read(self, topics: Sequence[str], on_page: OnPage, *, timeout_s: float) -> HistoryOutcome:
        """Hand over everything that is kept of the topics, oldest first for each object.  Blocks up to ``timeout_s``.

        A page may come again when the service that began to answer had to be replaced by another.  What ``on_page``
        raises comes out of it.
        """

    @abc.abstractmethod
    def watch(self, on_change: OnChange) -> None:
        """From now on call ``on_change``, from any thread, when it is worth reading again."""

    @abc.abstractmethod
    def mismatches(self) -> Sequence[Mismatch]:
        """Where less is kept than was asked for, as far as it is known from what was read."""

    @abc.abstractmethod
    def close(self) -> None:
        """A read that is under way ends soon.  Idempotent."""


_PLUGINS = Plugins(NAMESPACE, HistorySource, "history source")  # type: ignore[type-abstract]


def open_source(session: Session, topics: Sequence[str], durability: Durability) -> HistorySource:
    """The source of this name.  Raises DriverNotFound when it is not installed."""
    source: HistorySource = _PLUGINS.load(SOURCE)(session, topics, durability)
    return source
