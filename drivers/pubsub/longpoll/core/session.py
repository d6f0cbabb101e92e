"""What a publisher keeps of a subscriber, the settings it does so under, and what it counts.  Plain data.

When a session moves from one state to another is the business of `heliograph_drivers.pubsub.longpoll.core.publisher`.
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
    """Everything that happened, since the start."""

    sessions_opened: int = 0
    sessions_left: int = 0
    sessions_dead: int = 0
    refused: int = 0
    """Batches that would have gone beyond a limit."""
    unknown: int = 0
    """Messages of sessions that are not, or no longer, there."""
    superseded: int = 0
    commands: int = 0
    repeated_commands: int = 0
    """Commands that had been applied before."""
    polls: int = 0
    answers: int = 0
    frames_published: int = 0
    frames_put: int = 0
    """Into mailboxes: once per subscriber that gets it."""
    frames_taken: int = 0
    events_coalesced: int = 0
    events_dropped: int = 0
    hellos_withheld: int = 0
    resets: int = 0
    frames_reset: int = 0
    """Given up by resets."""


class PollAnswer(NamedTuple):
    """What a poll is answered."""

    session: bytes
    poll: int
    mail: Mail


class SubscriberSession:
    """A subscriber as its publisher knows it."""

    __slots__ = (
        "applied", "connection", "due", "hold_until", "id", "is_ready", "mailbox", "poll", "reset", "scheduled",
        "serial", "state",
    )  # fmt: skip

    def __init__(self, session_id: bytes, serial: int, mailbox: SubscriberMailbox, connection: str) -> None:
        self.id = session_id
        self.serial = serial
        self.mailbox = mailbox
        self.connection = connection
        """Where its first batch came from; empty when that is not known."""
        self.state = SessionState.AWAY
        self.applied = 0
        self.poll = 0
        """Number of the newest poll."""
        self.reset = 0
        """Number of a reset that is not acknowledged; 0: there is none."""
        self.due = 0.0
        """When it is dead, if AWAY; when its poll is answered, if PARKED."""
        self.scheduled = float("inf")
        """When the core looks at it next."""
        self.is_ready = False
        """It is PARKED and there is mail for it."""
