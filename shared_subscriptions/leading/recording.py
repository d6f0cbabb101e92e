"""From the bus into the log, for the groups that this process leads, or stands by for.

A declared group keeps its events only if a process records them.  The process that leads the group does, unless
``[groups] record`` says that another service records; the log holds an event once, however many record it.  What was
published since the group was declared, while one leader had gone and the next had not begun, is fetched from the caches
of the bus.

A publisher that ends takes its cache with it.  So the leader names a member that stands by: it hears the same topics
and keeps the newest in memory.  When another process leads, or the standby is let go, it appends what it
has; and it goes on hearing until the next leader's record says that its process records.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from durable_log.errors import OffsetTooOld
from durable_log.log_api import LogApi
from durable_log.recording.recorder import Recorder, RecorderStatistics
from durable_log.recording.standby_recorder import StandbyRecorder
from pubsub_api.core import frame as frames
from pubsub_api.core.settings import History
from pubsub_api.errors import HeliographError, WaitTimeout
from shared_subscriptions.core.declaration import Declaration

if TYPE_CHECKING:
    from pubsub_api import Session

LOG = logging.getLogger(__name__)

_AGE_CLAIM_TIMES = 3.0
"""A standby keeps what came within so many claim times: a dead leader is noticed after one, and had not recorded all
that it had heard."""
_READY_S = 60.0
_END_S = 5.0


class Recording:
    """Records while this process leads, and stands by while the leader wants it.  `on_rule` and `on_standby` are called
    by offices, one thread per group."""

    def __init__(self, session: Session, log: LogApi, *, claim_time_s: float) -> None:
        self._session = session
        self._log = log
        self._standby_age_s = _AGE_CLAIM_TIMES * claim_time_s
        self._lock = threading.Lock()
        self._recorders: dict[str, Recorder] = {}
        self._standbys: dict[str, StandbyRecorder] = {}
        self._ending: list[threading.Thread] = []
        self._missing = 0

    def on_rule(self, group: str, declaration: Declaration | None) -> None:
        """This process begins to lead the group, or ends."""
        with self._lock:
            former = self._recorders.pop(group, None)
            standby = self._standbys.pop(group, None) if declaration is not None else None
        if former is not None:
            former.close()
            self._missing += former.statistics().missing
        if declaration is None:
            return
        try:
            history = History(since=_since(self._log, declaration))
            recorder = Recorder(self._session, self._log, [declaration.topic_filter], history=history)
        except HeliographError as error:
            LOG.error("Group %s: its events are not recorded by this process: %s", group, error)
            self._end(group, standby, None)
            return
        with self._lock:
            self._recorders[group] = recorder
        self._end(group, standby, recorder)

    def on_standby(self, group: str, declaration: Declaration | None) -> None:
        """The leader wants this process to stand by, or another process leads now, or it wants another one."""
        with self._lock:
            former = self._standbys.pop(group, None)
        self._end(group, former, None)
        if declaration is None:
            return
        try:
            standby = StandbyRecorder(
                self._session, self._log, [declaration.topic_filter], age_max_s=self._standby_age_s
            )
        except HeliographError as error:
            LOG.warning("Group %s: this process cannot stand by for its leader: %s", group, error)
            return
        with self._lock:
            self._standbys[group] = standby

    def on_handover(self, group: str) -> None:
        """The leader is gone: append what the standby has.  It goes on until a leader records."""
        with self._lock:
            standby = self._standbys.get(group)
        if standby is not None:
            self._begin_to_end(group, standby.flush)

    def is_recording(self, group: str) -> bool:
        """Whether what is published for a group from now on is heard and recorded here.  Does not block."""
        with self._lock:
            recorder = self._recorders.get(group)
        if recorder is None:
            return False
        try:
            recorder.wait_ready(0.0)
        except HeliographError:
            return False
        return True

    def _end(self, group: str, standby: StandbyRecorder | None, recorder: Recorder | None) -> None:
        """Let a standby append what it has, in a thread: an office must not wait for the log."""
        if standby is None:
            return
        self._begin_to_end(group, functools.partial(_relieve, standby, recorder))

    def _begin_to_end(self, group: str, target: Callable[[], object]) -> None:
        thread = threading.Thread(target=target, name=f"heliograph-standby-{group}", daemon=True)
        with self._lock:
            self._ending = [one for one in self._ending if one.is_alive()]
            self._ending.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait, for a short time, until standbys that ended have appended what they had.  The offices have ended."""
        with self._lock:
            ending, self._ending = self._ending, []
        for thread in ending:
            thread.join(_END_S)

    def wait_ready(self, *, timeout_s: float) -> None:
        """Return when what this process has to record, or to keep as a standby, is heard from now on.  Raises
        WaitTimeout.

        Where publishers own the addresses no publisher is waited for: there may be none yet, and one that comes is
        asked for what it has published until then.
        """
        if self._session.capabilities.bind_based:
            return
        with self._lock:
            hearing: list[Recorder | StandbyRecorder] = [*self._recorders.values(), *self._standbys.values()]
        for one in hearing:
            one.wait_ready(timeout_s)

    @property
    def missing(self) -> int:
        """Events that recorders of this process have lost, and no cache had."""
        with self._lock:
            return self._missing + sum(one.statistics().missing for one in self._recorders.values())

    @property
    def standing_by(self) -> int:
        """Groups that this process stands by for."""
        return len(self._standbys)

    def statistics(self) -> dict[str, RecorderStatistics]:
        """By group."""
        with self._lock:
            return {group: recorder.statistics() for group, recorder in self._recorders.items()}


def _since(log: LogApi, declaration: Declaration) -> int:
    """From when on events are wanted of the caches, by the clocks of publishers.

    The declaration states a time by the clock of the host that declared the group, which may be ahead: then all are
    wanted, and the log leaves out what it holds.  What was recorded first since then says better when that was, because
    publishers say it.  Raises LogError.
    """
    if declaration.declared_ns > time.time_ns():
        return 0
    found = [declaration.declared_ns]
    for shard, start in enumerate(declaration.positions):
        try:
            stored = log.read(shard, start, events_max=1)
        except OffsetTooOld as error:
            stored = log.read(shard, error.start, events_max=1)
        found += [frames.unpack(one.frame, bytes_max=len(one.frame)).timestamp for one in stored]
    return min(found)


def _relieve(standby: StandbyRecorder, recorder: Recorder | None) -> None:
    """Append what the standby has; and go on hearing until the recorder that follows does."""
    standby.flush()
    if recorder is not None:
        try:
            recorder.wait_ready(_READY_S)
        except (WaitTimeout, HeliographError) as error:
            LOG.info("A recorder is not ready yet, and its standby goes: %s", error)
        standby.flush()
    standby.close()
