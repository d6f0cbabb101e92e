"""Plain data of a publisher: the session of a subscriber, the settings, the counters.

`heliograph_drivers.pubsub.longpoll.core.publisher` decides about the states of a session.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple

from heliograph_drivers.pubsub.longpoll.core.mailbox import Bounds, MailboxPolicy, SubscriberMailbox
from heliograph_drivers.pubsub.longpoll.core.wire import Mail


class SessionState(enum.Enum):
    AWAY = "away"
    PARKED = "parked"


@dataclasses.dataclass(frozen=True)
class LongpollPublisherSettings:
    bounds: Bounds
    poll_interval_s: float
    session_timeout_s: float
    sessions_max: int
    subscriptions_max: int
    policy_of: Callable[[str], MailboxPolicy]
    key: bytes | None = None


@dataclasses.dataclass
class PublisherCounters:
    """The counters of a publisher since its start."""

    sessions_dead: int = 0
    refused: int = 0
    """Batches that would have exceeded a limit."""
    unknown: int = 0
    """Messages of unknown sessions."""
    superseded: int = 0
    repeated_commands: int = 0
    """Commands that had been applied before."""
    polls: int = 0
    events_coalesced: int = 0
    events_dropped: int = 0
    hellos_withheld: int = 0
    resets: int = 0
    frames_reset: int = 0
    """Frames that resets dropped."""


class PollAnswer(NamedTuple):
    """The answer to a poll."""

    session: bytes
    poll: int
    mail: Mail


class SubscriberSession:
    """The state of a subscriber at its publisher."""

    __slots__ = (
        "applied", "connection", "due", "id", "is_ready", "mailbox", "poll", "reset", "scheduled",
        "serial", "state",
    )  # fmt: skip

    def __init__(self, session_id: bytes, serial: int, mailbox: SubscriberMailbox, connection: str) -> None:
        self.id = session_id
        self.serial = serial
        self.mailbox = mailbox
        self.connection = connection
        """Address and port of its first batch; empty when they are not known."""
        self.state = SessionState.AWAY
        self.applied = 0
        self.poll = 0
        """Number of the newest poll."""
        self.reset = 0
        """Number of the reset that is not acknowledged; 0 when there is none."""
        self.due = 0.0
        """If AWAY, when it counts as dead; if PARKED, when its poll is answered."""
        self.scheduled = float("inf")
        """When the timer of the session is due."""
        self.is_ready = False
        """Whether it is PARKED and has mail."""
