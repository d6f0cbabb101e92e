"""A standby of a recorder: it hears what the recorder hears, keeps the newest of it in memory, and appends that when
the recorder is gone.

While all is well it costs a subscription and no access to the log.  What it appends in the end the log mostly has: it
keeps an event once, however often it is appended.  So a standby need not know how far the recorder came; it only has to
reach back further than the time after which a dead recorder is noticed.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Sequence

from durable_log.errors import LogError
from durable_log.log_api import LogApi
from durable_log.recording.append_retries import append_patiently
from pubsub_api import Resync, Session
from pubsub_api.core.frame import Header
from pubsub_api.errors import Closed, FrameError
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

BYTES_MAX = 32 << 20
"""Frames that a standby keeps.  Of a flood that is larger within the time, the oldest go, and are counted."""
_PORTION = 500

Delivery = tuple[bytes, Header, int]


class StandbyRecorder(Closeable):
    """Keeps what came within ``age_max_s`` of the topics that filters select.  Close it before its session and log."""

    def __init__(
        self,
        session: Session,
        log: LogApi,
        topics: Sequence[str],
        *,
        age_max_s: float,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._log = log
        self._age_max_s = age_max_s
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: collections.deque[tuple[float, bytes]] = collections.deque()
        self._bytes = 0
        self._closing = threading.Event()
        self.dropped = 0
        """Frames younger than ``age_max_s`` for which there was no room."""
        self._subscriber = session.frames(topics, self._on_frames, on_resync=self._on_resync)

    def wait_ready(self, timeout_s: float) -> None:
        """Block until the subscription is in effect.  Raises WaitTimeout."""
        self._subscriber.wait_ready(timeout_s=timeout_s)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def flush(self) -> int:
        """Append what is kept, and keep nothing; returns how many events the log did not have.

        Blocks while the log cannot be reached, until `close`.  What cannot be appended is told in the log of the
        program, as it is for a recorder.
        """
        with self._lock:
            frames = [frame for _, frame in self._kept]
            self._kept.clear()
            self._bytes = 0
        events = 0
        for start in range(0, len(frames), _PORTION):
            events += self._append(frames[start : start + _PORTION])
        if events:
            LOG.info("Standby: appended %d events that the recorder before had not", events)
        return events

    def close(self) -> None:
        """Stop hearing.  What is kept and not flushed is forgotten."""
        self._closing.set()
        self._subscriber.close()

    def _append(self, frames: Sequence[bytes]) -> int:
        try:
            return append_patiently(self._log, frames, self._closing).events
        except FrameError as error:  # the recorder could not store it either
            LOG.warning("Standby: the log refuses a frame: %s", error)
            return sum(self._append([frame]) for frame in frames) if len(frames) > 1 else 0
        except (LogError, Closed) as error:
            LOG.error("Standby: %d frames are not recorded: %s", len(frames), error)
            return 0

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        now = time.monotonic()
        with self._lock:
            for frame, _, _ in deliveries:
                self._kept.append((now, frame))
                self._bytes += len(frame)
            while self._kept and (self._bytes > self._bytes_max or self._kept[0][0] < now - self._age_max_s):
                came, frame = self._kept.popleft()
                self._bytes -= len(frame)
                self.dropped += came >= now - self._age_max_s

    def _on_resync(self, resync: Resync) -> None:
        """What it has not heard it cannot append; the next recorder asks the caches for it."""
        for one in resync.lost:
            LOG.info("Standby: lost %s", one)
