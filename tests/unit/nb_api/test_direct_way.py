"""When a thread that has committed publishes itself: only when that cannot make it wait."""

from __future__ import annotations

import msgspec

from nb_api.db_api import Change
from nb_api.writing.direct_way import (
    BYTES_MAX,
    CHANGES_MAX,
    FLOOD_GAP_S,
    FLOOD_PAUSE_S,
    FLOOD_RUN,
    SLOW_PAUSE_S,
    SLOW_S,
    DirectWay,
    Load,
    load_of,
)

ONE = Load(1, 200)


def proven() -> DirectWay:
    way = DirectWay()
    way.flushed(way.mark(), is_proven=True)
    return way


def test_a_way_that_no_flush_has_proven_is_not_free() -> None:
    way = DirectWay()
    assert not way.is_free(ONE, 0.0)
    way.flushed(way.mark(), is_proven=True)
    assert way.is_free(ONE, 0.0)


def test_a_failure_ends_it_until_a_flush_succeeds() -> None:
    way = proven()
    way.lost()
    assert not way.is_free(ONE, 0.0)
    way.flushed(way.mark(), is_proven=False)
    assert not way.is_free(ONE, 0.0)
    way.flushed(way.mark(), is_proven=True)
    assert way.is_free(ONE, 0.0)


def test_so_many_changes_fit_between_two_flushes() -> None:
    way = proven()
    for second in range(CHANGES_MAX):
        assert way.is_free(Load(1, 1), float(second))
        way.published(Load(1, 1), commits=1, begun=float(second), now=float(second))
    assert not way.is_free(Load(1, 1), float(CHANGES_MAX))
    assert way.is_full


def test_so_many_bytes_fit_between_two_flushes() -> None:
    way = proven()
    assert not way.is_free(Load(1, BYTES_MAX + 1), 0.0)
    assert way.is_free(Load(1, BYTES_MAX), 0.0)
    way.published(Load(1, BYTES_MAX), commits=1, begun=0.0, now=0.0)
    assert not way.is_free(Load(1, 1), 0.0)
    assert way.is_full


def test_a_flush_proves_what_was_published_before_it_began() -> None:
    way = proven()
    way.published(Load(1, BYTES_MAX), commits=1, begun=0.0, now=0.0)
    mark = way.mark()
    way.published(Load(1, BYTES_MAX // 2), commits=1, begun=0.0, now=0.0)
    way.flushed(mark, is_proven=True)
    assert way.is_free(Load(1, BYTES_MAX // 2), 0.0)
    assert not way.is_free(Load(1, BYTES_MAX // 2 + 1), 0.0)


def test_after_a_slow_publication_writers_keep_away_for_a_while() -> None:
    way = proven()
    way.published(ONE, commits=1, begun=10.0, now=10.0 + 2 * SLOW_S)
    assert not way.is_free(ONE, 10.0 + 2 * SLOW_S)
    assert way.is_free(ONE, 10.0 + 3 * SLOW_S + SLOW_PAUSE_S)


def test_opening_the_publisher_is_not_slow() -> None:
    way = DirectWay()
    way.published(ONE, commits=1, begun=10.0, now=20.0)
    way.flushed(way.mark(), is_proven=True)
    assert way.is_free(ONE, 20.0)


def publish(way: DirectWay, at: float, *, commits: int = 1) -> None:
    way.published(ONE, commits=commits, begun=at, now=at)


def test_commits_that_are_not_close_to_each_other_are_published_at_once() -> None:
    way = proven()
    for number in range(3 * FLOOD_RUN):
        at = 10.0 + number * 1.1 * FLOOD_GAP_S
        assert way.is_free(ONE, at)
        publish(way, at)


def test_a_few_commits_close_to_each_other_are_published_at_once() -> None:
    way = proven()
    for number in range(FLOOD_RUN):
        at = 10.0 + number * FLOOD_GAP_S / 2
        assert way.is_free(ONE, at)
        publish(way, at)


def in_flood() -> tuple[DirectWay, float]:
    """And when it last published."""
    way, at = proven(), 10.0
    for _ in range(FLOOD_RUN + 1):
        at += FLOOD_GAP_S / 2
        publish(way, at)
    return way, at


def test_in_a_flood_there_is_a_pause_between_publications() -> None:
    way, at = in_flood()
    for _ in range(3):
        assert not way.is_free(ONE, at + FLOOD_PAUSE_S / 2)
        assert 0 < way.pause_s(at + FLOOD_PAUSE_S / 2) <= FLOOD_PAUSE_S
        at += 1.1 * FLOOD_PAUSE_S
        assert way.is_free(ONE, at)
        publish(way, at, commits=3)  # it goes on
    assert not way.is_free(ONE, at)


def test_a_flood_ends_with_a_commit_that_was_alone() -> None:
    way, at = in_flood()
    publish(way, at + 1.1 * FLOOD_PAUSE_S)
    assert way.is_free(ONE, at + 1.1 * FLOOD_PAUSE_S)


def test_commits_at_the_same_moment_now_and_then_are_no_flood() -> None:
    way, at = proven(), 10.0
    for _ in range(2 * FLOOD_RUN):
        at += 1.0
        publish(way, at, commits=2)
        assert way.is_free(ONE, at)


def test_the_load_of_changes_is_at_least_their_values() -> None:
    value = msgspec.Raw(msgspec.msgpack.encode("x" * 1000))
    changes = [Change(1, "set", "t", "k", "t", value), Change(2, "delete", "t", "k2", "t")]
    assert load_of(changes).changes == 2
    assert load_of(changes).bytes > 1000
    assert load_of([]) == Load(0, 0)
