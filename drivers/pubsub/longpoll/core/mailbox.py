"""The frames that a publisher holds for one subscriber: in order, bounded, each with a policy.

Frames wait until an answer to a poll takes them.  They are kept until the next poll acknowledges them, so that a lost
answer can be sent again.  Taking gives frames consecutive numbers; a poll acknowledges up to a number.

========== ========================================= ==================================================================
policy     when frames of its stream wait already    when the mailbox is full
========== ========================================= ==================================================================
LOSSLESS   a new frame waits behind them             it is overfull: the publisher resets the subscriber
LATEST     a new frame replaces them, at the end     the same: it has one frame per stream, and still too many
LOSSY      a new frame waits behind them             the oldest are dropped, to make room for frames of any policy
========== ========================================= ==================================================================

Removed frames of LATEST and LOSSY topics are announced: the next frame of that stream is stamped as following the last
one that was not removed (``after``), so that the subscriber knows which numbers were skipped and does not count them as
lost.  Before such a frame, a hello would announce a head that the subscriber never gets, so it is withheld.

Sans-IO and not thread-safe.  A frame that is signed with an unknown key cannot be stamped, so it counts as LOSSLESS.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque

from pubsub_api.core.frame import Kind, Stamp, read_stamp, with_after

ENTRY_BYTES = 200
"""Added to the size of each waiting frame, so that the number of tiny frames is bounded, too."""

Stream = tuple[bytes, bytes]
Runs = list[tuple[int, list[bytes]]]
"""Frames in order, grouped by the number of the last command that was in effect when they were put."""


class MailboxPolicy(enum.Enum):
    LOSSLESS = "lossless"
    LATEST = "latest"
    LOSSY = "lossy"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How much a mailbox holds and how much of it one answer carries."""

    frames_max: int
    bytes_max: int
    reply_frames_max: int
    reply_bytes_max: int
    """An answer carries at least one frame, of any size."""


class _Entry:
    __slots__ = ("as_of", "frame", "is_waiting", "stamp")

    def __init__(self, frame: bytes, as_of: int, stamp: Stamp | None) -> None:
        self.frame = frame
        self.as_of = as_of
        self.stamp = stamp
        self.is_waiting = True


class SubscriberMailbox:
    """See the module's description.  ``key`` signs frames that are stamped anew."""

    __slots__ = (
        "_bounds", "_key", "_latest", "_lossy", "_removed", "_sent", "_skips", "_waiting", "_waiting_bytes",
        "coalesced", "dropped", "numbered", "skipped_untold", "withheld",
    )  # fmt: skip

    def __init__(self, bounds: Bounds, key: bytes | None = None) -> None:
        self._bounds = bounds
        self._key = key
        self._waiting: deque[_Entry] = deque()
        self._removed = 0
        """How many entries of ``_waiting`` were removed and are only skipped when they are reached."""
        self._sent: list[_Entry] = []
        """Taken and not acknowledged; the last of them has the number ``numbered``."""
        self._lossy: deque[_Entry] = deque()
        self._latest: dict[Stream, list[_Entry]] = {}
        """The waiting entries of a stream under LATEST: at most a data frame, and a hello behind it."""
        self._skips: dict[Stream, int] = {}
        """Stream with removed frames -> the number that its next frame follows."""
        self._waiting_bytes = 0
        self.numbered = 0
        """The last number given to a frame."""
        self.coalesced = 0
        self.dropped = 0
        self.withheld = 0
        self.skipped_untold = 0
        """Events coalesced or dropped since the last `take`."""

    def __len__(self) -> int:
        """Frames held."""
        return len(self._waiting) - self._removed + len(self._sent)

    @property
    def held_bytes(self) -> int:
        """The size of all frames held, with `ENTRY_BYTES` for each."""
        return self._waiting_bytes + sum(len(entry.frame) + ENTRY_BYTES for entry in self._sent)

    @property
    def has_mail(self) -> bool:
        """Whether there is something to `take`; it may be only hellos that are withheld."""
        return bool(self._sent) or len(self._waiting) > self._removed

    @property
    def is_overfull(self) -> bool:
        """Whether the waiting frames exceed the bounds.  Taken frames do not count: the answer bounds them."""
        waiting = len(self._waiting) - self._removed
        return self._waiting_bytes > self._bounds.bytes_max or max(waiting, len(self._skips)) > self._bounds.frames_max

    def put(self, frame: bytes, as_of: int, policy: MailboxPolicy) -> None:
        """Add a frame.  It may exceed the bounds, see `is_overfull`."""
        stamp = read_stamp(frame) if policy is not MailboxPolicy.LOSSLESS else None
        if stamp is not None and stamp.is_signed and self._key is None:
            stamp = None
        entry = _Entry(frame, as_of, stamp)
        self._waiting.append(entry)
        self._waiting_bytes += len(frame) + ENTRY_BYTES
        if stamp is not None and policy is MailboxPolicy.LATEST:
            self._replace(stamp, entry)
        elif stamp is not None:
            self._lossy.append(entry)
        while self._lossy and self.is_overfull:
            self._drop(self._lossy.popleft())

    def take(self) -> tuple[int, Runs]:
        """The frames for an answer, and the number of the first.  Unacknowledged frames are returned again."""
        if not self._sent:
            self._take_waiting()
        runs: Runs = []
        for entry in self._sent:
            if not runs or runs[-1][0] != entry.as_of:
                runs.append((entry.as_of, []))
            runs[-1][1].append(entry.frame)
        return self.numbered - len(self._sent) + 1, runs

    def take_skipped(self) -> int:
        """How many events were coalesced or dropped since the last call."""
        skipped, self.skipped_untold = self.skipped_untold, 0
        return skipped

    def acknowledge(self, number: int) -> None:
        """Forget the frames up to ``number``: they have arrived."""
        keep = max(0, min(len(self._sent), self.numbered - number))
        self._sent = self._sent[len(self._sent) - keep :]

    def clear(self) -> int:
        """Forget all frames, taken or not; returns how many there were.  Numbers go on."""
        lost = len(self)
        self._waiting.clear()
        self._sent = []
        self._removed = 0
        self._lossy.clear()
        self._latest.clear()
        self._skips.clear()
        self._waiting_bytes = 0
        return lost

    def number_a_mark(self) -> int:
        """Use a number for a mark instead of a frame.  Call it only when no taken frame is unacknowledged."""
        self.numbered += 1
        return self.numbered

    def keep_topics(self, is_wanted: dict[bytes, bool]) -> None:
        """Remove waiting frames of unwanted topics.  ``is_wanted`` has every topic of `waiting_topics`."""
        for entry in self._waiting:
            if not entry.is_waiting:
                continue
            stamp = entry.stamp or read_stamp(entry.frame)
            if stamp is not None and not is_wanted[stamp.stream[1]]:
                self._remove(entry)
        self._skips = {stream: after for stream, after in self._skips.items() if is_wanted.get(stream[1], True)}
        self._latest = {
            stream: kept for stream, held in self._latest.items() if (kept := [one for one in held if one.is_waiting])
        }

    def waiting_topics(self) -> set[bytes]:
        stamps = (entry.stamp or read_stamp(entry.frame) for entry in self._waiting if entry.is_waiting)
        return {stamp.stream[1] for stamp in stamps if stamp is not None} | {stream[1] for stream in self._skips}

    # -- policies

    def _replace(self, stamp: Stamp, entry: _Entry) -> None:
        held = self._latest.get(stamp.stream, [])
        if stamp.kind == Kind.DATA:
            for older in held:
                self._skip(older)
                self._remove(older)
            held = []
        elif held and held[-1].stamp is not None and held[-1].stamp.kind == stamp.kind:
            self._remove(held.pop())
        self._latest[stamp.stream] = [*held, entry]

    def _drop(self, entry: _Entry) -> None:
        if entry.is_waiting:
            self._skip(entry)
            self._remove(entry)

    def _skip(self, entry: _Entry) -> None:
        stamp = entry.stamp
        if stamp is None or stamp.kind != Kind.DATA:
            return
        # The oldest frame is removed first, so the first number here is the lowest.
        self._skips.setdefault(stamp.stream, stamp.after)
        self.skipped_untold += stamp.events
        if stamp.stream in self._latest:
            self.coalesced += stamp.events
        else:
            self.dropped += stamp.events

    def _remove(self, entry: _Entry) -> None:
        entry.is_waiting = False
        self._waiting_bytes -= len(entry.frame) + ENTRY_BYTES
        entry.frame = b""
        self._removed += 1
        if self._removed > 64 and self._removed * 2 > len(self._waiting):
            self._waiting = deque(kept for kept in self._waiting if kept.is_waiting)
            self._removed = 0

    # -- taking

    def _take_waiting(self) -> None:
        bounds = self._bounds
        size = 0
        while self._waiting and len(self._sent) < bounds.reply_frames_max:
            entry = self._waiting[0]
            if not entry.is_waiting:
                self._waiting.popleft()
                self._removed -= 1
                continue
            size += len(entry.frame)
            if self._sent and size > bounds.reply_bytes_max:
                break
            self._waiting.popleft()
            entry.is_waiting = False
            self._waiting_bytes -= len(entry.frame) + ENTRY_BYTES
            if entry.stamp is None or self._restamp(entry, entry.stamp):
                self._sent.append(entry)
        self.numbered += len(self._sent)
        while self._lossy and not self._lossy[0].is_waiting:
            self._lossy.popleft()

    def _restamp(self, entry: _Entry, stamp: Stamp) -> bool:
        """Announce in this frame what was removed before it.  Returns False for a hello that is withheld."""
        held = self._latest.get(stamp.stream)
        if held is not None:
            held.remove(entry)
            if not held:
                del self._latest[stamp.stream]
        if stamp.stream not in self._skips:
            return True
        if stamp.kind == Kind.DATA:
            entry.frame = with_after(entry.frame, self._skips.pop(stamp.stream), self._key)
            return True
        if stamp.kind == Kind.HELLO:
            self.withheld += 1
            return False
        return True
