"""When a thread that has committed publishes itself: only when that cannot make it wait."""

from __future__ import annotations

import msgspec

from nb_api.db_api import Change
from nb_api.writing.direct_way import (
    BYTES_MAX,
    CHANGES_MAX,
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
        way.published(Load(1, 1), begun=float(second), now=float(second))
    assert not way.is_free(Load(1, 1), float(CHANGES_MAX))
    assert way.is_full


def test_so_many_bytes_fit_between_two_flushes() -> None:
    way = proven()
    assert not way.is_free(Load(1, BYTES_MAX + 1), 0.0)
    assert way.is_free(Load(1, BYTES_MAX), 0.0)
    way.published(Load(1, BYTES_MAX), begun=0.0, now=0.0)
    assert not way.is_free(Load(1, 1), 0.0)
    assert way.is_full


def test_a_flush_proves_what_was_published_before_it_began() -> None:
    way = proven()
    way.published(Load(1, BYTES_MAX), begun=0.0, now=0.0)
    mark = way.mark()
    way.published(Load(1, BYTES_MAX // 2), begun=0.0, now=0.0)
    way.flushed(mark, is_proven=True)
    assert way.is_free(Load(1, BYTES_MAX // 2), 0.0)
    assert not way.is_free(Load(1, BYTES_MAX // 2 + 1), 0.0)


def test_after_a_slow_publication_writers_keep_away_for_a_while() -> None:
    way = proven()
    way.published(ONE, begun=10.0, now=10.0 + 2 * SLOW_S)
    assert not way.is_free(ONE, 10.0 + 2 * SLOW_S)
    assert way.is_free(ONE, 10.0 + 3 * SLOW_S + SLOW_PAUSE_S)


def test_opening_the_publisher_is_not_slow() -> None:
    way = DirectWay()
    way.published(ONE, begun=10.0, now=20.0)
    way.flushed(way.mark(), is_proven=True)
    assert way.is_free(ONE, 20.0)


def test_the_load_of_changes_is_at_least_their_values() -> None:
    value = msgspec.Raw(msgspec.msgpack.encode("x" * 1000))
    changes = [Change(1, "set", "t", "k", "t", value), Change(2, "delete", "t", "k2", "t")]
    assert load_of(changes).changes == 2
    assert load_of(changes).bytes > 1000
    assert load_of([]) == Load(0, 0)
