"""Asking the caches for what a recorder lacks, after a resync: the thread behind `durable_log.core.holes`.

What was lost is asked for again and again for about half a minute; every other hole that the log has in a stream that
is heard is asked for once per resync, because the resync may mean that a cache came that has it.  The log remembers
what is missing meanwhile, also of a stream of which it has nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from durable_log.core.holes import Holes, size_of
from durable_log.core.placing import Range
from durable_log.log_api import LogApi, StreamState
from pubsub_api.core.frame import Header
from pubsub_api.core.receiving.resync_requests import LostRange
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import Closed, LimitReached
from pubsub_api.runtime.periodic import Failures
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_ERROR_PAUSE_S = 1.0
_RANGES_MAX = 1000
"""Ranges that are wanted at once.  With more, the one that is missing longest is given up: the log remembers it."""
_INTERVAL_S = 0.5
_ATTEMPTS_MAX = 7
"""The last question is asked about half a minute after the first one."""
_PAST_MAX = 10_000
"""Streams of which it is remembered that their past was asked for."""

_Stream = tuple[bytes, str]
"""GUID and topic."""


@dataclasses.dataclass
class RecoveredRange:
    """What came of asking."""

    asked: int = 0
    """Ranges that were asked for."""
    recovered: int = 0
    """Events that had been lost, and came."""
    missing: int = 0
    """Events that had been lost, and no cache had."""


class Recovery:
    """Asks through ``ask_again``.  Its thread runs only while something is wanted.  ``since`` is the time, as
    publishers state it, from which on events are wanted; 0 for all."""

    def __init__(
        self, log: LogApi, topics: Sequence[str], ask_again: Callable[[Sequence[LostRange]], None], *, since: int
    ) -> None:
        self._log = log
        self._filters = FilterSet(topics)
        self._ask_again = ask_again
        self._since = since
        self._lock = threading.Lock()
        self._holes = Holes(ranges_max=_RANGES_MAX, interval_s=_INTERVAL_S, attempts_max=_ATTEMPTS_MAX)
        self._wants_look = False
        self._past: dict[_Stream, int] = {}
        """Stream -> number up to which it was asked for what is older than the recording."""
        self._thread: threading.Thread | None = None
        self._wakeup = threading.Event()
        self._is_closed = False
        self._failures = Failures(LOG, "Recorder: which events the log lacks is not known now")
        self.counters = RecoveredRange()

    def resynced(self, lost: Sequence[LostRange]) -> None:
        """A resync was told: ask for what it says is lost, and look for other holes.  Does not block."""
        with self._lock:
            self._holes.add(lost, time.monotonic())
            self._wants_look = True
            if self._thread is None and not self._is_closed:
                self._start()
        self._wakeup.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="heliograph-recorder-holes", daemon=True)
        try:
            start_thread(thread)
        except LimitReached as error:
            self._failures.note(error)  # the next resync starts it, and it looks for all holes then
        else:
            self._thread = thread

    def is_unwanted(self, header: Header) -> bool:
        """Whether a frame came because it was asked for, and is from before the time since which events are wanted."""
        if not self._past or header.timestamp >= self._since:
            return False
        return header.last <= self._past.get((header.guid, header.topic), 0)

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- the thread

    def _run(self) -> None:
        while self._goes_on():
            try:
                if self._take_look():
                    self._ask_for_holes()
                self._ask_for_lost()
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  counted and logged
                self._failures.note(error)
                self._wakeup.wait(_ERROR_PAUSE_S)

    def _goes_on(self) -> bool:
        """Wait until there is something to do; False when nothing is wanted any more."""
        with self._lock:
            deadline = time.monotonic() if self._wants_look else self._holes.next_deadline()
            if deadline == math.inf or self._is_closed:
                self._thread = None
                return False
            self._wakeup.clear()
        self._wakeup.wait(max(0.0, deadline - time.monotonic()))
        return not self._is_closed

    def _take_look(self) -> bool:
        with self._lock:
            wants_look, self._wants_look = self._wants_look, False
        return wants_look

    def _ask_for_holes(self) -> None:
        holes = [
            LostRange("", one.guid.hex(), one.topic, low, high)
            for one in self._streams().values() if self._filters.match(one.topic) for low, high in one.missing
        ]  # fmt: skip
        self._ask(holes[-_RANGES_MAX:])

    def _ask_for_lost(self) -> None:
        streams = self._streams()
        with self._lock:
            asked = self._holes.take_due(lambda one: _lacking(one, streams), time.monotonic())
            given_up, self._holes.given_up = self._holes.given_up, []
            self.counters.recovered = self._holes.recovered
            self.counters.missing += size_of(given_up)
        for one in given_up:
            LOG.error("Recorder: %s is missing in the log: no publisher and no cache has it", one)
        heads = [(bytes.fromhex(one.guid), one.topic, one.last) for one in (*asked, *given_up)]
        unknown = [one for one in heads if one[:2] not in streams or streams[one[:2]].last < one[2]]
        if unknown:
            self._log.note_missing(unknown)
        self._ask(asked)

    def _ask(self, ranges: Sequence[LostRange]) -> None:
        if not ranges:
            return
        if self._since:
            past = self._past | {(bytes.fromhex(one.guid), one.topic): one.last for one in ranges}
            self._past = dict(list(past.items())[-_PAST_MAX:])
        self.counters.asked += len(ranges)
        self._ask_again(ranges)

    def _streams(self) -> dict[_Stream, StreamState]:
        found = (one for shard in range(self._log.shards) for one in self._log.streams(shard))
        return {(one.guid, one.topic): one for one in found}


def _lacking(one: LostRange, streams: Mapping[_Stream, StreamState]) -> list[Range]:
    """What the log lacks of a stream, up to the end of a range of it."""
    state = streams.get((bytes.fromhex(one.guid), one.topic))
    if state is None:
        return [(one.first, one.last)]
    beyond = [(state.last + 1, one.last)] if one.last > state.last else []
    return [*state.missing, *beyond]
