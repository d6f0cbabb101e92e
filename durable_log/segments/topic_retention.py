"""Retention by topic: of sealed segments that are old enough, the events of some topics are dropped.

A segment is written anew without them, as compaction does it, when its newest event is older than the topic allows: so
a segment is written anew once for each age that is configured.  Frames go or stay as a whole, signed ones too.  Offsets
stay what they were.  What is not sealed waits until it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from durable_log.core.dropped_ranges import DroppedRange, bounded
from durable_log.log_api import CLOCK_AHEAD_MAX_NS, Segment
from durable_log.segments.columns import import_pyarrow
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import InvalidConfig, InvalidTopic

if TYPE_CHECKING:
    import pyarrow

_SECOND_NS = 1_000_000_000


class TopicAges:
    """How long the events of each topic are kept.  Raises InvalidConfig."""

    def __init__(self, rules: Sequence[str], default_s: float) -> None:
        """``rules`` are ``FILTER=SECONDS``, of which the first that matches holds; 0 is for ever."""
        self._rules = [_parse(rule) for rule in rules]
        self._default_s = default_s
        ages_s = {default_s, *(age_s for _, age_s in self._rules)}
        self.finite_s = sorted(ages_s - {0.0})
        self.longest_s = 0.0 if 0.0 in ages_s else max(ages_s)
        """What is older than this is of no use to any topic; 0 when something is kept for ever."""

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of(self, topic: str) -> float:
        return next((age_s for filters, age_s in self._rules if filters.match(topic)), self._default_s)


def _parse(rule: str) -> tuple[FilterSet, float]:
    topic_filter, _, text = rule.rpartition("=")
    try:
        age_s = float(text)
        if not 0.0 <= age_s < float("inf"):
            raise ValueError(f"{text} is no age")
        return FilterSet([topic_filter.strip()]), age_s
    except (ValueError, InvalidTopic) as error:
        raise InvalidConfig(
            f"[log] retention_topics: {rule!r} is not FILTER=SECONDS, as in audit/#=31536000: {error}"
        ) from error


def _runs(table: pyarrow.Table) -> Iterator[DroppedRange]:
    """Offsets that follow each other and are of one topic."""
    if not table.num_rows:
        return
    offsets = table.column("offset").to_numpy()
    names = table.column("topic").combine_chunks().dictionary_encode()
    topics, codes = names.dictionary.to_pylist(), names.indices.to_numpy()
    ends = [*((offsets[1:] != offsets[:-1] + 1) | (codes[1:] != codes[:-1])).nonzero()[0].tolist(), len(offsets) - 1]
    begin = 0
    for last in ends:
        first, end = int(offsets[begin]), int(offsets[last]) + 1
        yield DroppedRange(topics[int(codes[begin])], first, end, end - first, 0)
        begin = last + 1


class TopicRetention:
    """Drops what is too old from the sealed part of shards."""

    def __init__(self, log: SegmentedLog, sealer: Sealer, compactor: SegmentCompactor, ages: TopicAges) -> None:
        self._log = log
        self._sealer = sealer
        self._compactor = compactor
        self._ages = ages
        self._looked: dict[str, int] = {}
        """Path -> how many of the ages were over when it was looked into."""
        self._newest: dict[str, int] = {}
        """Path -> when the newest event was appended, of segments with times that lie ahead."""

    def drop(self, shard: int, now_ns: int) -> int:
        """Returns how many events went.  Takes the sealer's lock.  Raises LogUnavailable, LogCorrupt."""
        if not self._ages.finite_s:
            return 0
        removed, empty_until = 0, 0
        with self._sealer.lock():
            segments = self._log.segments(shard)
            for segment in segments:
                over = sum(
                    now_ns - int(age_s * _SECOND_NS) > self._newest_ns(segment, now_ns) for age_s in self._ages.finite_s
                )
                if over and segment.rows and self._looked.get(segment.path) != over:
                    removed += self._drop_from(segment, now_ns)
                    self._looked[segment.path] = over
            listed = self._log.segments(shard)
        for segment in listed:
            if segment.rows or self._newest_ns(segment, now_ns) > now_ns - int(self._ages.finite_s[0] * _SECOND_NS):
                break
            empty_until = segment.end
        if empty_until:
            self._log.trim(shard, empty_until)
        known = {segment.path for segment in self._log.segments()}
        self._looked = {path: over for path, over in self._looked.items() if path in known}
        self._newest = {path: newest_ns for path, newest_ns in self._newest.items() if path in known}
        return removed

    def _drop_from(self, segment: Segment, now_ns: int) -> int:
        newest_ns = self._newest_ns(segment, now_ns)
        found = {topic: self._ages.of(topic) for topic in self._log.segment_reader.topics(segment)}
        gone = [topic for topic, age_s in found.items() if age_s and now_ns - int(age_s * _SECOND_NS) > newest_ns]
        if not gone:
            return 0
        runs: list[DroppedRange] = []
        # By the clock when it is done, because a reader that begins meanwhile still finds it.
        tables = self._without(segment, gone, runs)
        return self._compactor.write_anew(
            segment, tables, lambda: tuple(one._replace(dropped_ns=max(now_ns, self._log.now_ns())) for one in runs)
        )

    def _without(self, segment: Segment, topics: Sequence[str], runs: list[DroppedRange]) -> Iterator[pyarrow.Table]:
        """The rows that stay; what goes is noted in ``runs``, which is kept small."""
        arrow = import_pyarrow()
        from pyarrow import compute  # noqa: PLC0415

        names = arrow.array(topics, arrow.string())
        for table in self._compactor.row_groups(segment):
            goes = compute.is_in(table.column("topic"), value_set=names)
            runs[:] = bounded(itertools.chain(runs, _runs(table.select(["offset", "topic"]).filter(goes))))
            yield table.filter(compute.invert(goes))

    def _newest_ns(self, segment: Segment, now_ns: int) -> int:
        """When its newest event was appended, of those that were not stamped while a clock was far ahead."""
        latest_ns = now_ns + CLOCK_AHEAD_MAX_NS
        if segment.appended_ns_max <= latest_ns:
            return segment.appended_ns_max
        if segment.path not in self._newest:
            times = (table.column("appended_ns").to_numpy() for table in self._compactor.row_groups(segment))
            right = (int(found.max()) for found in (one[one <= latest_ns] for one in times) if len(found))
            self._newest[segment.path] = max(right, default=segment.appended_ns_min)
        return self._newest[segment.path]
