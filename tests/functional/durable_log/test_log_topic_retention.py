"""Topics with a retention of their own."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator

import pytest

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.segments.topic_retention import TopicAges
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_frames
from durable_log.upkeep.maintenance import Maintainer
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import InvalidConfig

HOUR_NS = 3600 * 10**9

Open = Callable[..., SegmentedLog]


@pytest.fixture
def open_log(tmp_path: pathlib.Path) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def open_it(**options: object) -> SegmentedLog:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            url = f"sqlite://{tmp_path}/log.db?shards=1&seal_age=0&{query}"
            log = stack.enter_context(contextlib.closing(durable_log.open(url)))
            assert isinstance(log, SegmentedLog)
            return log

        yield open_it


def topics(log: SegmentedLog) -> list[tuple[int, str]]:
    return [(one.offset, one.header().topic) for one in read_frames(log, 0)]


def test_a_topic_is_dropped_when_it_is_old_and_others_stay(open_log: Open) -> None:
    log, source = open_log(retention_topics="metrics/%23=1800"), Source(key=b"secret")
    log.append([source.frame(topic, 10) for topic in ("metrics/a", "audit", "metrics/b", "audit")])
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + 10**9)
        before = [one.frame for one in read_frames(log, 0)]
        assert len(before) == 4
        maintainer.run_once(time.time_ns() + HOUR_NS)
        assert topics(log) == [(10, "audit"), (30, "audit")]
        assert [one.frame for one in read_frames(log, 0)] == [before[1], before[3]]
        segments = log.segments()
        maintainer.run_once(time.time_ns() + 2 * HOUR_NS)
        assert log.segments() == segments, "it is written anew once"
    assert (maintainer.statistics.dropped_by_topic, maintainer.statistics.dropped_by_age) == (20, 0)
    assert log.read(0, 0)[0].offset == 10
    assert verify(log).problems == []
    assert log.read_stream(source.guid, "metrics/a", 1, 10) == []


def test_a_topic_outlives_the_retention_of_all_others(open_log: Open) -> None:
    log, source = open_log(retention_age=1800, retention_topics="audit/%23=0,short=60"), Source()
    for topic in ("audit/x", "other", "short"):
        log.append([source.frame(topic, 10)])
        Sealer(log).seal(0)
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + 10**9)
        assert len(topics(log)) == 3
        maintainer.run_once(time.time_ns() + 120 * 10**9)
        assert [topic for _, topic in topics(log)] == ["audit/x", "other"]
        maintainer.run_once(time.time_ns() + HOUR_NS)
        assert topics(log) == [(0, "audit/x")]
        maintainer.run_once(time.time_ns() + 1000 * HOUR_NS)
    assert topics(log) == [(0, "audit/x")]
    assert verify(log).problems == []


def test_what_is_empty_at_the_front_is_dropped(open_log: Open) -> None:
    log, source = open_log(retention_topics="a=60,b=0"), Source()
    for topic in ("a", "a", "b", "a"):
        log.append([source.frame(topic, 10)])
        Sealer(log).seal(0)
    files = [segment.path for segment in log.segments()]
    with Maintainer(log) as maintainer:
        maintainer.run_once(time.time_ns() + HOUR_NS)
    assert (log.state()[0].start, topics(log)) == (20, [(20, "b")])
    assert [segment.rows for segment in log.segments()] == [10, 0]
    assert [pathlib.Path(path).exists() for path in files] == [False, False, True, False]


def test_the_first_filter_that_matches_holds_and_nonsense_is_refused(open_log: Open) -> None:
    ages = TopicAges(["a/b=60", "a/#=0", "x=y=30.5"], 7.0)
    assert [ages.of(topic) for topic in ("a/b", "a/c", "x=y", "z")] == [60.0, 0.0, 30.5, 7.0]
    assert (ages.longest_s, ages.finite_s) == (0.0, [7.0, 30.5, 60.0])
    assert TopicAges(["a=60"], 30.0).longest_s == 60.0
    for rule in ("a", "a=", "a=-1", "a=inf", "a=nan", "=5", "a/#/b=5"):
        with pytest.raises(InvalidConfig, match="retention_topics"):
            TopicAges([rule], 0.0)
    log = open_log(retention_topics="a=soon")
    with pytest.raises(InvalidConfig, match="a=soon"):
        Maintainer(log)


def test_what_is_young_is_not_dropped_because_a_clock_was_ahead_before(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, now_ns = open_log(retention_topics="metrics=600"), Source(), time.time_ns()
    for appended_ns in (now_ns - 2 * HOUR_NS, now_ns + 3 * HOUR_NS, now_ns):
        monkeypatch.setattr(time, "time_ns", lambda: appended_ns)  # noqa: B023
        log.append([source.frame("metrics", 10)])
    Sealer(log).seal(0)
    with Maintainer(log) as maintainer:
        maintainer.run_once(now_ns + 500 * 10**9)
        assert len(topics(log)) == 3
        maintainer.run_once(now_ns + 700 * 10**9)
    assert topics(log) == []
