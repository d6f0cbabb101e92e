"""What a log needs now and then: sealing, retention, cleaning.  One process per log does it; several do no harm.

Retention drops the oldest: what was appended longer ago than ``retention_age``, and what makes the log larger than
``retention_bytes``.  ``retention_topics`` gives topics an age of their own.  Whatever is dropped is counted.

What is damaged in one shard, or a directory that is full, stops neither the other shards nor the other steps: dropping
may be what makes room again.  Nor does what a clock has stamped that was far ahead for a while: it is as old as what
comes after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator

from durable_log import config
from durable_log.errors import LogCorrupt, LogReplaced, LogUnavailable, SealingBusy
from durable_log.log_api import CLOCK_AHEAD_MAX_NS, ShardState
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.segments.topic_retention import TopicAges, TopicRetention
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread

LOG = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000


@dataclasses.dataclass
class MaintenanceStatistics:
    """Everything that maintenance has done since it was made."""

    rounds: int = 0
    sealed_segments: int = 0
    sealed_events: int = 0
    dropped_by_age: int = 0
    """Offsets, as in all that count what was dropped."""
    dropped_by_topic: int = 0
    """Events."""
    dropped_by_bytes: int = 0
    compacted_segments: int = 0
    compacted_events: int = 0
    """Events that compaction has removed."""
    forgotten_streams: int = 0
    orphans_removed: int = 0
    stamped_ahead: int = 0
    """How often something was met that had been appended while the clock was far ahead."""
    busy: int = 0
    """Rounds given up because another process was at it."""
    errors: int = 0
    """Steps, or steps for one shard, that failed."""


class Maintainer(Closeable):
    """Maintains a log; `start` does it in a thread, `run_once` here and now.  Close it when done, the log after it."""

    def __init__(self, log: SegmentedLog, *, on_failure: Callable[[LogReplaced], None] = lambda _: None) -> None:
        """``on_failure`` is told when the thread ends because another log is in the place of this one."""
        self._on_failure = on_failure
        self._log = log
        self._options = log.conf[config.GROUP]
        self._sealer = Sealer(log)
        self._compactor = SegmentCompactor(log, self._sealer)
        self._ages = TopicAges(self._options.retention_topics, self._options.retention_age)
        self._topics = TopicRetention(log, self._sealer, self._compactor, self._ages)
        self.statistics = MaintenanceStatistics()
        self._thread = PeriodicThread(
            "heliograph-log-maintenance",
            self._run,
            Failures(LOG, "Maintenance of the log failed"),
            pause_s=config.MAINTENANCE_INTERVAL_S,
            on_failure=self._failed,
        )

    def start(self) -> Maintainer:
        """Raises LimitReached."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread after the step it is at.  Idempotent."""
        self._thread.stop()

    def run_once(self, now_ns: int | None = None) -> None:
        """Seal what is due, drop what is too much, clean up.  What is damaged and what the system refuses is told and
        counted.  Raises LogError for what concerns the whole log; what was done before it stays done."""
        now_ns = self._log.now_ns() if now_ns is None else now_ns
        self.statistics.rounds += 1
        try:
            with self._guarded("cleaning"):
                self.statistics.orphans_removed += len(self._sealer.clean())
            for state in self._log.state():
                with self._guarded(f"sealing of shard {state.shard}"):
                    self._seal_if_due(state, now_ns)
            self._compact(now_ns)
            self._drop_by_topic(now_ns)
        except SealingBusy as error:
            self.statistics.busy += 1
            LOG.info("Maintenance leaves sealing to others: %s", error)
        except LogUnavailable as error:
            self.statistics.errors += 1
            LOG.warning("Maintenance of the log: sealing failed and is tried again: %s", error)
        self._drop_by_age(now_ns)
        with self._guarded("dropping by size"):
            self._drop_by_bytes()
        forget_before = now_ns - int(config.STREAM_FORGET_AGE_S * _SECOND_NS)
        self.statistics.forgotten_streams += self._log.forget_streams(forget_before)
        self._log.release()

    def _run(self) -> None:
        try:
            self.run_once()
        except LogReplaced as error:
            LOG.error("Maintenance of the log ends: %s", error)
            self._thread.ask_to_stop()
            self._on_failure(error)

    def _failed(self, _error: Exception) -> None:
        self.statistics.errors += 1

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except (LogCorrupt, OSError) as error:
            self.statistics.errors += 1
            LOG.warning("Maintenance of the log: %s failed and is tried again: %s", what, error)

    def _seal_if_due(self, state: ShardState, now_ns: int) -> None:
        hot = state.end - state.sealed
        if not hot:
            return
        if hot < self._options.seal_events:
            oldest = self._log.hot_read(state.shard, state.sealed, events_max=1, bytes_max=1).frames
            if not oldest:
                return
            is_old = oldest[0].appended_ns <= now_ns - int(self._options.seal_age * _SECOND_NS)
            if not is_old and not self._is_ahead(state.shard, state.sealed, oldest[0].appended_ns, now_ns):
                return
        made = self._sealer.seal(state.shard, state.end)
        self.statistics.sealed_segments += len(made)
        self.statistics.sealed_events += sum(segment.rows for segment in made)

    def _drop_by_topic(self, now_ns: int) -> None:
        for shard in range(self._log.shards if self._ages else 0):
            with self._guarded(f"dropping of shard {shard} by topic"):
                self.statistics.dropped_by_topic += self._topics.drop(shard, now_ns)

    def _compact(self, now_ns: int) -> None:
        for shard in range(self._log.shards if self._options.compact_topics else 0):
            with self._guarded(f"compaction of shard {shard}"):
                report = self._compactor.compact(shard, now_ns)
                self.statistics.compacted_segments += report.segments
                self.statistics.compacted_events += report.removed

    def _drop_by_age(self, now_ns: int) -> None:
        if not self._ages.longest_s:
            return
        before_ns = now_ns - int(self._ages.longest_s * _SECOND_NS)
        for state in self._log.state():
            with self._guarded(f"dropping of shard {state.shard} by age"):
                kept_from = self._kept_from(state.shard, before_ns, now_ns)
                if kept_from > state.start:
                    self.statistics.dropped_by_age += self._log.trim(state.shard, kept_from)

    def _kept_from(self, shard: int, before_ns: int, now_ns: int) -> int:
        """The first offset that is not too old.  `find` may stop at what a clock has stamped that was ahead."""
        kept_from = offset = self._log.find(shard, before_ns)
        appended_ns = self._log.appended_at(shard, offset)
        if appended_ns is None or not self._is_ahead(shard, offset, appended_ns, now_ns):
            return kept_from
        while portion := self._log.read(shard, offset, events_max=1000):
            for stored in portion:
                if before_ns <= stored.appended_ns <= now_ns + CLOCK_AHEAD_MAX_NS:
                    return kept_from
                if stored.appended_ns < before_ns:
                    kept_from = stored.end
            offset = portion[-1].end
        return kept_from

    def _is_ahead(self, shard: int, offset: int, appended_ns: int, now_ns: int) -> bool:
        """Whether a time is so far in the future that a clock was wrong.  Told, and counted."""
        if appended_ns <= now_ns + CLOCK_AHEAD_MAX_NS:
            return False
        self.statistics.stamped_ahead += 1
        ahead_s = (appended_ns - now_ns) // _SECOND_NS
        LOG.warning("Shard %d, offset %d was appended while the clock was %d s ahead of now", shard, offset, ahead_s)
        return True

    def _drop_by_bytes(self) -> None:
        """The oldest segments first; then, of the shard that has most, as large a part as is too much."""
        limit = self._options.retention_bytes
        while limit:
            segments = self._log.segments()
            states = self._log.state()
            surplus = self._log.unsealed_bytes() + sum(segment.bytes for segment in segments) - limit
            if surplus <= 0:
                return
            if segments:
                oldest = min(segments, key=lambda segment: segment.appended_ns_max)
                firsts = [one for one in segments if one.shard == oldest.shard and one.first <= oldest.first]
                shard, before = oldest.shard, max(one.end for one in firsts)
            else:
                largest = max(states, key=lambda state: state.bytes)
                part = min(1.0, surplus / max(largest.bytes, 1))
                shard, before = largest.shard, largest.start + int((largest.end - largest.start) * part)
                before = self._end_at(largest, before)
            dropped = self._log.trim(shard, before)
            self.statistics.dropped_by_bytes += dropped
            if not dropped:
                return

    def _end_at(self, state: ShardState, offset: int) -> int:
        """Where the frame of an unsealed offset ends, or what is damaged there."""
        try:
            frames = self._log.hot_read(state.shard, offset, events_max=1, bytes_max=1).frames
        except LogCorrupt as error:
            return state.end if error.end is None else error.end
        return frames[0].end if frames else state.end
