"""Plain data of a link: the actions that its core asks for, its settings and its counters.

`heliograph_drivers.pubsub.longpoll.core.subscriber` decides about the states of a link.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from heliograph_drivers.pubsub.longpoll.core.wire import FrameBatch, Leave, Poll


class Deliver(NamedTuple):
    frames: list[bytes]


class Up(NamedTuple):
    """Every filter is in effect."""


class InEffect(NamedTuple):
    """A filter that was added while the link was up is in effect."""

    topic_filter: str


class Down(NamedTuple):
    reason: str


class SendBatch(NamedTuple):
    batch: FrameBatch
    timeout_s: float


class SendPoll(NamedTuple):
    poll: Poll
    timeout_s: float


class SendLeave(NamedTuple):
    leave: Leave


Action = Deliver | Up | InEffect | Down | SendBatch | SendPoll | SendLeave


@dataclasses.dataclass(frozen=True)
class LinkSettings:
    poll_interval_s: float
    poll_grace_s: float
    command_timeout_s: float
    batch_max: int
    retry_min_s: float
    retry_max_s: float


@dataclasses.dataclass
class LinkCounters:
    """The counters of a link since its start."""

    sessions: int = 0
    resumed: int = 0
    forgotten: int = 0
    resets: int = 0
    failures: int = 0
    batches: int = 0
    commands: int = 0
    polls: int = 0
    frames: int = 0
    duplicates: int = 0
    """Frames that had been delivered before."""
    outdated: int = 0
    """Frames of a subscription that had ended."""
    skipped: int = 0
    """Events that the publisher coalesced or dropped on purpose."""
