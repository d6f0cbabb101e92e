"""A recorder: what passes on the bus is appended to a log, undecoded.

It is a subscriber that takes frames in order, after repair, and appends as many together as are at hand.  While the log
cannot be reached it tries again and lets frames wait in the subscriber's queue, which is bounded: what does not fit is
told by a resync, counted here, and remembered in the log as a hole when the stream goes on.

Several recorders may write to one log, for instance one per host: each event is stored once, by the recorder that comes
first, and what one has missed another fills.

A recorder asks the caches for what it lacks.  When it starts, for all that they hold, so a pause shorter than their
memory leaves no hole; and for what was lost at every resync after that, be it loss or a link to a publisher that was
not there before (`durable_log.recording.missing_events`).  What cannot be had stays a hole
in the log, told, and counted.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence

from durable_log.core.holes import size_of
from durable_log.errors import LogCorrupt, LogError, LogReplaced
from durable_log.log_api import LogApi
from durable_log.recording.append_retries import append_patiently
from durable_log.recording.missing_events import Recovery
from pubsub_api import History, Resync, Session
from pubsub_api.core.frame import Header
from pubsub_api.core.receiving.resync_requests import LostRange, Reason
from pubsub_api.errors import Closed, FrameError
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

_ALL = History()

Delivery = tuple[bytes, Header, int]
OnFailure = Callable[[LogReplaced], None]


@dataclasses.dataclass
class RecorderStatistics:
    """What a recorder has done."""

    appends: int = 0
    """Calls of the log; each stores many frames."""
    frames: int = 0
    events: int = 0
    """Events stored."""
    duplicates: int = 0
    """Events that the log held already, because another recorder, or a cache at the start, was faster."""
    retries: int = 0
    """Appends tried again because the log could not be reached."""
    refused: int = 0
    """Frames that the log refuses, for instance because they are too large."""
    resyncs: int = 0
    lost: int = 0
    """Events that a resync said are lost.  They are asked for again."""
    asked: int = 0
    """Ranges of events that caches were asked for after a resync."""
    recovered: int = 0
    """Events of those lost that came after all."""
    missing: int = 0
    """Events of those lost that no cache had: a hole in the log, unless another recorder fills it."""
    failed: int = 0
    """Frames that were given up because the log is broken or closed."""


class Recorder(Closeable):
    """Records the topics that filters select.  Close it before its session and its log.

    ``history`` says what caches are asked for at the start; None asks for nothing.  Drivers without queries are not
    asked.  ``on_failure`` is told, for each append, when nothing can be recorded any more: another log is in the place
    of the one that was opened.  It must not block.
    """

    def __init__(
        self,
        session: Session,
        log: LogApi,
        topics: Sequence[str],
        *,
        addresses: Sequence[str] | None = None,
        history: History | None = _ALL,
        on_failure: OnFailure = lambda _: None,
    ) -> None:
        self._log = log
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._statistics = RecorderStatistics()
        self._closing = threading.Event()
        self._recovery = Recovery(log, topics, self._ask_again, since=history.since if history else 0)
        self._subscriber = session.frames(
            topics,
            self._on_frames,
            on_resync=self._on_resync,
            addresses=addresses,
            past=history if session.capabilities.queries else None,
            takes_repeats=True,  # of what was given up, asked for again, and came
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Block until the subscription is in effect.  Raises WaitTimeout."""
        self._subscriber.wait_ready(timeout_s=timeout_s)

    def statistics(self) -> RecorderStatistics:
        with self._lock:
            return dataclasses.replace(self._statistics, **vars(self._recovery.counters))

    def close(self) -> None:
        """Stop recording.  What is in the queue is not waited for: the next recorder asks the caches for it."""
        self._closing.set()
        self._subscriber.close()
        self._recovery.close()

    def _on_frames(self, deliveries: Sequence[Delivery]) -> None:
        """Called by the subscriber's dispatcher, which waits meanwhile: that is what bounds the memory."""
        frames = [frame for frame, header, _ in deliveries if not self._recovery.is_unwanted(header)]
        if frames:
            self._record(frames)

    def _record(self, frames: Sequence[bytes]) -> None:
        try:
            self._append(frames)
        except (FrameError, LogCorrupt) as error:
            if len(frames) > 1:  # one of them is bad, or where its stream stands is; the others are not to suffer
                for frame in frames:
                    self._record([frame])
            elif isinstance(error, FrameError):
                LOG.warning("Recorder: the log refuses a frame: %s", error)
                self._count(refused=1)
            else:
                self._fail(frames, error)
        except LogError as error:
            self._fail(frames, error)
            if isinstance(error, LogReplaced):
                self._on_failure(error)
        except Closed:
            self._count(failed=len(frames))

    def _fail(self, frames: Sequence[bytes], error: LogError) -> None:
        LOG.error("Recorder: %d frames are not recorded: %s", len(frames), error)
        self._count(failed=len(frames))

    def _append(self, frames: Sequence[bytes]) -> None:
        """Append, again and again while the log is unavailable.  Raises FrameError, and LogError when it is no use."""
        appended = append_patiently(self._log, frames, self._closing, lambda: self._count(retries=1))
        self._count(appends=1, frames=len(frames), events=appended.events, duplicates=appended.duplicates)

    def _on_resync(self, resync: Resync) -> None:
        for one in resync.lost:
            LOG.warning("Recorder: lost %s; the caches are asked for it again", one)
        self._count(resyncs=1, lost=size_of(resync.lost))
        if not resync.reasons <= {Reason.INITIAL} or resync.lost:  # at first the caches were asked for everything
            self._recovery.resynced(resync.lost)

    def _ask_again(self, ranges: Sequence[LostRange]) -> None:
        self._subscriber.ask_again(ranges)

    def _count(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self._statistics, name, getattr(self._statistics, name) + count)
