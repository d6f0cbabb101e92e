"""The leader's record of one stream: who has it, how far it is, and the table of what may happen to it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final, NamedTuple

import msgspec

from shared_subscriptions.core.progress import Acknowledged, Progress, snapshot


class Status(enum.Enum):
    ABSENT = "absent"
    """Nobody has it."""
    GRANTING = "granting"
    GRANTED = "granted"
    REVOKING = "revoking"
    REVOKED = "revoked"


class Cause(enum.Enum):
    GRANT = "grant"
    PROGRESS = "progress"
    REVOKE = "revoke"
    FINAL = "final progress"
    FINISHED = "revoke finished"
    VANISHED = "stream vanished"
    OWNER_LOST = "owner lost"


TRANSITIONS: Final[dict[tuple[Status, Cause], Status]] = {
    (Status.ABSENT, Cause.GRANT): Status.GRANTING,
    (Status.GRANTING, Cause.PROGRESS): Status.GRANTED,
    (Status.GRANTING, Cause.FINAL): Status.REVOKED,
    (Status.GRANTING, Cause.REVOKE): Status.REVOKING,
    (Status.GRANTING, Cause.VANISHED): Status.REVOKED,
    (Status.GRANTING, Cause.OWNER_LOST): Status.ABSENT,
    (Status.GRANTED, Cause.PROGRESS): Status.GRANTED,
    (Status.GRANTED, Cause.FINAL): Status.REVOKED,
    (Status.GRANTED, Cause.REVOKE): Status.REVOKING,
    (Status.GRANTED, Cause.VANISHED): Status.REVOKED,
    (Status.GRANTED, Cause.OWNER_LOST): Status.ABSENT,
    (Status.REVOKING, Cause.PROGRESS): Status.REVOKING,
    (Status.REVOKING, Cause.FINAL): Status.REVOKED,
    (Status.REVOKING, Cause.VANISHED): Status.REVOKED,
    (Status.REVOKING, Cause.OWNER_LOST): Status.ABSENT,
    (Status.REVOKED, Cause.FINISHED): Status.ABSENT,
    (Status.REVOKED, Cause.OWNER_LOST): Status.ABSENT,
}
"""Whatever is not here changes nothing."""

HELD = (Status.GRANTING, Status.GRANTED)


class StreamInfo(NamedTuple):
    """What the log says about a stream."""

    start: int
    """The oldest offset that can be read."""
    end: int


class StreamRecord(msgspec.Struct, frozen=True):
    """What is stored of a stream."""

    progress: Progress
    owner: str = ""
    """Name of the member that had it last."""
    home: str = ""
    """Name of the member that gets it back when it returns."""
    expired: int = 0
    """Offsets that retention dropped before they were acknowledged, so far."""
    redelivered: int = 0
    """Events that were with somebody who lost the stream before acknowledging them, so far."""


@dataclasses.dataclass
class Stream:
    """One stream, as the leader sees it."""

    number: int
    info: StreamInfo
    done: Acknowledged
    generation: int
    attempts: dict[int, int] = dataclasses.field(default_factory=dict)
    status: Status = Status.ABSENT
    owner: str = ""
    """The borrower that has it; empty when absent."""
    grant: int = 0
    until: int = -1
    """What the owner was told."""
    former: str = ""
    """Slot that had it last, or has it."""
    home: str = ""
    """Slot that should have it: others keep it only as long as that one is away."""
    expired: int = 0
    redelivered: int = 0
    sent_at: float = 0.0
    revoked_at: float = 0.0
    is_dirty: bool = True
    has_vanished: bool = False

    @classmethod
    def load(cls, number: int, info: StreamInfo, record: StreamRecord) -> Stream:
        progress = record.progress
        return cls(
            number,
            info,
            Acknowledged(progress.low, progress.ranges),
            progress.generation,
            dict(progress.attempts),
            former=record.owner,
            home=record.home,
            expired=record.expired,
            redelivered=record.redelivered,
            is_dirty=False,
        )

    def record(self) -> StreamRecord:
        return StreamRecord(self.progress(), self.former, self.home, self.expired, self.redelivered)

    def progress(self) -> Progress:
        return snapshot(self.done, self.generation, self.attempts)

    def move(self, cause: Cause) -> bool:
        """Let something happen; False when it changes nothing in this state."""
        after = TRANSITIONS.get((self.status, cause))
        if after is None:
            return False
        self.status = after
        if after is Status.ABSENT:
            self.owner = ""
        return True

    def merge(self, progress: Progress) -> None:
        """Take over what an owner has done.  Nothing that is done is ever undone."""
        if progress.generation != self.generation:
            return
        if self.done.merge(progress):
            self.is_dirty = True
        for offset, count in progress.attempts.items():
            if offset not in self.done and count > self.attempts.get(offset, 0):
                self.attempts[offset] = count
                self.is_dirty = True

    def expire(self) -> None:
        """Give up what retention has dropped."""
        if self.info.start > self.done.low:
            self.expired += self.done.missing(self.done.low, self.info.start)
            self.done.add(self.done.low, self.info.start)
            self.is_dirty = True

    def reset(self, generation: int, position: int) -> None:
        """Begin at another place.  Only while nobody has it."""
        self.generation = generation
        self.done = Acknowledged(position)
        self.attempts.clear()
        self.is_dirty = True
