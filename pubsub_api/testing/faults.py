"""Faults of a link: their description (`Faults`), and the code that applies them to frames (`FaultInjector`).

`Faults` is shared, thread-safe and may be changed at any time.  A `FaultInjector` belongs to one direction of one link:
frames go in, the frames that may pass now come out.  It reads no clock, starts no thread and draws the same number of
random values for every frame, so that what happens to frame *n* depends only on the seed, on *n* and on the present
settings.  Everything that it does to a frame is counted.

It is not a model of any transport.  The memory driver puts one behind each subscriber, and
`pubsub_api.testing.faulty.FaultyPubSub` puts one in front of any driver's receiver.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import random
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from pubsub_api.errors import UsageError

HELD_BYTES_MAX = 64 * 1024 * 1024
_KIND_OFFSET = 5


@dataclasses.dataclass(frozen=True)
class FaultSettings:
    """One consistent set of controls.  Probabilities are per frame, from 0 to 1."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """The frame is held until up to ``reorder_span`` later ones have overtaken it, for ``delay_s_max`` at most."""
    delay: float = 0.0
    """The frame is held for a random time between ``delay_s_min`` and ``delay_s_max``.  With ``delay`` 1 and both
    times equal this is plain latency: order is kept."""
    delay_s_min: float = 0.0
    delay_s_max: float = 0.05
    reorder_span: int = 3
    kinds: Collection[int] | None = None
    """Only frames of these kinds are dropped, duplicated, reordered and delayed; None: all.  The faults below apply to
    every kind."""
    partitioned: bool = False
    """Every frame is lost, and neither end notices."""
    frozen: bool = False
    """Frames are held, up to a bound, until the link thaws."""
    disconnected: bool = False
    """Every frame is lost, and both ends report that the link is down."""

    def __post_init__(self) -> None:
        if self.kinds is not None:
            object.__setattr__(self, "kinds", frozenset(self.kinds))
        for name in ("drop", "duplicate", "reorder", "delay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} = {getattr(self, name)} is not a probability")
        if not 0.0 <= self.delay_s_min <= self.delay_s_max:
            raise UsageError(f"a delay from {self.delay_s_min} s to {self.delay_s_max} s is not a range")
        if self.reorder_span < 1:
            raise UsageError(f"reorder_span = {self.reorder_span} lets no frame overtake")

    @property
    def is_quiet(self) -> bool:
        """Every frame passes unchanged."""
        return not (
            self.drop or self.duplicate or self.reorder or self.delay
            or self.partitioned or self.frozen or self.disconnected
        )  # fmt: skip


@dataclasses.dataclass
class FaultCounts:
    """What was done to frames so far.  A frame may be counted under several names."""

    passed: int = 0
    """Frames that came out, with copies."""
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    delayed: int = 0
    cut: int = 0
    """Lost to a partition or a disconnect."""
    frozen: int = 0
    overflowed: int = 0
    """Lost because the injector already held ``held_bytes_max``."""


class FaultsWatcher(Protocol):
    """An object that must react to a change of the settings, because it holds frames or reports links."""

    def on_faults(self) -> None:
        """The settings have changed.  Read them: a call may come late or twice."""


class Faults:
    """The fault settings of one link, or of several links, and their counters.  Thread-safe."""

    def __init__(self, seed: int = 0, *, on_drop: Callable[[bytes], None] | None = None, **settings: Any) -> None:
        self.seed = seed
        self.on_drop = on_drop
        """Called with every frame that ``drop`` loses, by the thread that sends it.  Must not block and not raise."""
        self.settings = FaultSettings(**settings)
        """The present settings.  Replaced, never changed: read it without a lock."""
        self._lock = threading.Lock()
        self._counts = FaultCounts()
        self._watchers: weakref.WeakSet[FaultsWatcher] = weakref.WeakSet()

    def set(self, **settings: Any) -> None:
        """Change some settings.  Raises UsageError for a value out of range."""
        with self._lock:
            self.settings = dataclasses.replace(self.settings, **settings)
            watchers = tuple(self._watchers)
        # Not under the lock: a watcher takes locks of its own, and may read the counters.
        for watcher in watchers:
            watcher.on_faults()

    def partition(self, is_cut: bool) -> None:
        """Begin (True) or end (False) to lose every frame."""
        self.set(partitioned=is_cut)

    def freeze(self) -> None:
        """Hold every frame from now on."""
        self.set(frozen=True)

    def thaw(self) -> None:
        """Release the held frames in order, and hold no more."""
        self.set(frozen=False)

    def disconnect(self) -> None:
        """Take the link down.  Both ends report it."""
        self.set(disconnected=True)

    def reconnect(self) -> None:
        """Bring the link up again.  Both ends report it."""
        self.set(disconnected=False)

    def heal(self) -> None:
        """End every fault.  Delayed frames pass at their time."""
        self.set(
            drop=0.0, duplicate=0.0, reorder=0.0, delay=0.0, partitioned=False, frozen=False, disconnected=False
        )  # fmt: skip

    def counts(self) -> FaultCounts:
        """The counters of all injectors with these faults, as a copy."""
        with self._lock:
            return dataclasses.replace(self._counts)

    def add_counts(self, **changes: int) -> None:
        """Add to the counters.  Called by injectors."""
        with self._lock:
            for name, change in changes.items():
                setattr(self._counts, name, getattr(self._counts, name) + change)

    def watch(self, watcher: FaultsWatcher) -> None:
        """Call ``watcher.on_faults()`` after every change, in the thread that makes it.  Keeps a weak reference."""
        with self._lock:
            self._watchers.add(watcher)


@dataclasses.dataclass(eq=False)
class _Reordered:
    """A frame that waits until later ones have passed."""

    frame: bytes
    passes_left: int
    deadline: float


class FaultInjector:
    """Applies faults to one direction of one link.  Not thread-safe: its owner calls it under a lock, with its clock.

    ``name`` distinguishes the injectors that share one `Faults`, so that they do not all drop the same frames.  While
    `is_idle`, the owner need not call it; then frames are neither counted nor numbered.
    """

    def __init__(self, faults: Faults, name: str = "", *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._faults = faults
        self._random = random.Random(f"{faults.seed}/{name}")
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._frozen: collections.deque[bytes] = collections.deque()
        self._delayed: list[tuple[float, int, bytes]] = []
        """A heap of time, number, frame."""
        self._reordered: list[_Reordered] = []
        self._delayed_count = 0
        self._counts: collections.Counter[str] = collections.Counter()

    def push(self, frames: Iterable[bytes], now: float) -> list[bytes]:
        """Add frames.  Returns the frames that pass now: held frames that are due, and new ones."""
        settings = self._faults.settings
        out: list[bytes] = []
        self._release(settings, now, out)
        for frame in frames:
            if settings.frozen:
                if self._hold(frame, "frozen"):
                    self._frozen.append(frame)
            else:
                self._apply_faults(settings, frame, now, out)
        return self._counted(out)

    def due(self, now: float) -> list[bytes]:
        """The held frames that pass now."""
        out: list[bytes] = []
        self._release(self._faults.settings, now, out)
        return self._counted(out)

    @property
    def is_idle(self) -> bool:
        """No frame is held, and a new frame would pass unchanged."""
        return self._faults.settings.is_quiet and not (self._frozen or self._delayed or self._reordered)

    @property
    def next_due(self) -> float | None:
        """The time at which `due` will return frames; None when it will return none without another call or change."""
        if self._faults.settings.frozen:
            return None
        if self._frozen:
            return 0.0
        times = [held.deadline for held in self._reordered]
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def _release(self, settings: FaultSettings, now: float, out: list[bytes]) -> None:
        if settings.disconnected:
            self._lose_held()
        if settings.frozen:
            return
        while self._frozen:
            frame = self._frozen.popleft()
            self._held_bytes -= len(frame)
            self._apply_faults(settings, frame, now, out)
        while self._delayed and self._delayed[0][0] <= now:
            self._release_one(heapq.heappop(self._delayed)[2], out)
        late = [held for held in self._reordered if held.deadline <= now]
        for held in late:
            self._reordered.remove(held)
            self._release_one(held.frame, out)

    def _lose_held(self) -> None:
        """The link went down, and the frames in transit are lost."""
        lost = len(self._frozen) + len(self._delayed) + len(self._reordered)
        if lost:
            self._counts["cut"] += lost
        for held in (self._frozen, self._delayed, self._reordered):
            held.clear()
        self._held_bytes = 0

    def _apply_faults(self, settings: FaultSettings, frame: bytes, now: float, out: list[bytes]) -> None:
        """Decide what happens to one frame.  Always draws five numbers, also where faults are off."""
        drop, duplicate, reorder, delay, amount = (self._random.random() for _ in range(5))
        if settings.partitioned or settings.disconnected:
            self._counts["cut"] += 1
            return
        if settings.kinds is not None and _kind(frame) not in settings.kinds:
            self._pass(frame, out)
            return
        if drop < settings.drop:
            self._counts["dropped"] += 1
            if self._faults.on_drop is not None:
                self._faults.on_drop(frame)
            return
        if duplicate < settings.duplicate:
            self._counts["duplicated"] += 1
            self._pass(frame, out)
        if delay < settings.delay:
            self._delay(frame, now + settings.delay_s_min + amount * (settings.delay_s_max - settings.delay_s_min))
        elif reorder < settings.reorder:
            passes = 1 + int(amount * settings.reorder_span)
            if self._hold(frame, "reordered"):
                self._reordered.append(_Reordered(frame, passes, now + settings.delay_s_max))
        else:
            self._pass(frame, out)

    def _pass(self, frame: bytes, out: list[bytes]) -> None:
        """Let a frame pass, and then the reordered frames that waited for it."""
        out.append(frame)
        for held in self._reordered:
            held.passes_left -= 1
        for held in [held for held in self._reordered if held.passes_left <= 0]:
            self._reordered.remove(held)
            self._release_one(held.frame, out)

    def _release_one(self, frame: bytes, out: list[bytes]) -> None:
        self._held_bytes -= len(frame)
        out.append(frame)

    def _delay(self, frame: bytes, until: float) -> None:
        if self._hold(frame, "delayed"):
            self._delayed_count += 1
            heapq.heappush(self._delayed, (until, self._delayed_count, frame))

    def _hold(self, frame: bytes, counter: str) -> bool:
        """Count a frame as held; False when there is no room, and the frame is lost."""
        if self._held_bytes + len(frame) > self._held_bytes_max:
            self._counts["overflowed"] += 1
            return False
        self._held_bytes += len(frame)
        self._counts[counter] += 1
        return True

    def _counted(self, out: list[bytes]) -> list[bytes]:
        if out:
            self._counts["passed"] += len(out)
        if self._counts:
            self._faults.add_counts(**self._counts)
            self._counts.clear()
        return out


def _kind(frame: bytes) -> int:
    return frame[_KIND_OFFSET] if len(frame) > _KIND_OFFSET else -1
