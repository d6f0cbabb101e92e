"""The state of a local cache: any interleaving of events, repeats, snapshots and deltas ends equal to the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CachedObject, Created, Deleted, Difference, Ending, Updated, pack
from nb_api.core.events import events_of
from nb_api.db_api import Change, DbObject
from pubsub_api import Event
from tests.helpers.cache_model import CacheMachine, held

TestAnyInterleaving = CacheMachine.TestCase
TestAnyInterleaving.settings = settings(max_examples=80, stateful_step_count=30)


# -- one behaviour, one test


def event(version: int, action: str = "set", *, topic: str = "t", key: str = "k", value: Any = None) -> Event:
    return Event(topic=topic, table="port", key=key, action=action, value=value, version=version)  # type: ignore[arg-type]


def row(version: int, *, topic: str = "t", key: str = "k", value: Any = None) -> DbObject:
    return DbObject("port", key, topic, value, version)


@pytest.fixture
def core() -> CacheCore:
    return CacheCore(None, ["t", "u"], tombstones_max=100)


def load(core: CacheCore, revision: int, *rows: DbObject, replaces: bool = False) -> list[Difference]:
    merge = core.merge(revision, core.filters, replaces=replaces)
    return merge.rows(rows) + merge.finish()


def created(now: DbObject) -> Created:
    return Created(now.table, now.key, _entry(now))


def updated(now: DbObject, before: DbObject) -> Updated:
    return Updated(now.table, now.key, _entry(now), _entry(before))


def deleted(last: DbObject, version: int, reason: Ending = "deleted") -> Deleted:
    return Deleted(last.table, last.key, _entry(last), version, reason)


def _entry(found: DbObject) -> CachedObject:
    return CachedObject(found.version, found.topic, pack(found.value))


def kinds(differences: list[Difference]) -> list[str]:
    return [type(difference).__name__ for difference in differences]


def test_created_then_updated_then_deleted(core: CacheCore) -> None:
    assert core.apply([event(1, "create", value=1)]) == [created(row(1, value=1))]
    assert core.apply([event(2, value=2)]) == [updated(row(2, value=2), row(1, value=1))]
    assert core.apply([event(3, "delete")]) == [deleted(row(2, value=2), 3)]


def test_older_and_equal_versions_are_ignored(core: CacheCore) -> None:
    core.apply([event(5)])
    assert core.apply([event(5), event(4), event(4, "delete"), event(5, "delete")]) == []
    assert core.counters.stale == 4


def test_a_delete_of_something_unknown_tells_nothing_and_keeps_the_old_out(core: CacheCore) -> None:
    assert core.apply([event(9, "delete")]) == []
    assert core.apply([event(8)]) == []
    assert kinds(core.apply([event(10)])) == ["Created"]


def test_what_is_older_than_the_position_is_old_news(core: CacheCore) -> None:
    load(core, 20)
    assert core.apply([event(19)]) == []
    assert kinds(core.apply([event(21)])) == ["Created"]


def test_events_without_a_version_and_of_strangers_are_counted(core: CacheCore) -> None:
    assert core.apply([event(0), event(3, topic="elsewhere")]) == []
    assert (core.counters.unversioned, core.counters.unwanted) == (1, 1)


def test_a_resync_tells_exactly_the_differences(core: CacheCore) -> None:
    load(core, 3, row(1, key="same"), row(2, key="changed"), row(3, key="gone"))
    told = load(core, 9, row(1, key="same"), row(8, key="changed"), row(9, key="new"))
    assert told == [
        updated(row(8, key="changed"), row(2, key="changed")),
        created(row(9, key="new")),
        deleted(row(3, key="gone"), 9, "absent"),  # it may have moved to a topic that is not followed
    ]


def test_an_object_that_moved_stays_when_its_old_topic_is_dropped_during_a_snapshot(core: CacheCore) -> None:
    load(core, 1, row(1, topic="u"))
    merge = core.merge(2, core.filters)
    core.remove_topic("u")
    assert kinds(merge.rows([row(2, topic="t")]) + merge.finish()) == ["Created"]


def test_an_old_event_during_a_snapshot_does_not_bring_back_what_is_gone(core: CacheCore) -> None:
    merge = core.merge(2, core.filters)
    assert kinds(core.apply([event(1, "create")])) == ["Created"]
    assert kinds(merge.rows([]) + merge.finish()) == ["Deleted"]
    assert core.apply([event(2, "delete"), event(1, "create")]) == []


def test_an_old_event_during_a_snapshot_stays_when_a_row_confirms_it(core: CacheCore) -> None:
    merge = core.merge(2, core.filters)
    core.apply([event(1, "create", value=1)])
    assert merge.rows([row(1, value=1)]) + merge.finish() == []
    assert held(core) == [row(1, value=1)]


def test_live_events_during_a_snapshot_win_over_it(core: CacheCore) -> None:
    core.apply([event(1, key="a"), event(2, key="b")])
    merge = core.merge(5, core.filters)
    core.apply([event(6, key="a"), event(7, "delete", key="b"), event(8, key="c"), event(9, "delete", key="d")])
    merge.rows([row(1, key="a"), row(2, key="b"), row(3, key="d")])
    merge.finish()
    assert [(found.key, found.version) for found in held(core)] == [("a", 6), ("c", 8)]


def test_what_came_between_the_opening_of_a_snapshot_and_its_merge_is_kept(core: CacheCore) -> None:
    core.apply([event(6)])
    merge = core.merge(5, core.filters)
    assert merge.finish() == []
    assert held(core) == [row(6)]


def test_what_is_older_than_the_snapshot_of_its_own_topic_is_old_news(core: CacheCore) -> None:
    load(core, 10)
    core.add_topic("new")
    core.merge(20, ["new"]).finish()
    assert core.apply([event(15, topic="new")]) == []
    assert kinds(core.apply([event(15, topic="t"), event(21, topic="new", key="l")])) == ["Created", "Created"]


@pytest.mark.parametrize("is_delete_first", [True, False])
def test_a_move_between_followed_topics_is_one_update(core: CacheCore, is_delete_first: bool) -> None:
    core.apply([event(1)])
    moved = events_of(Change(2, "set", "port", "k", "u", None, "t"))
    told = core.apply(moved[::-1] if is_delete_first else moved)
    assert told == [updated(row(2, topic="u"), row(1))]


def test_a_move_away_is_a_delete_and_a_move_in_is_a_create(core: CacheCore) -> None:
    core.apply([event(1)])
    away = events_of(Change(2, "set", "port", "k", "elsewhere", None, "t"))
    assert kinds(core.apply(away)) == ["Deleted"]
    assert kinds(core.apply(events_of(Change(3, "set", "port", "k", "t", None, "elsewhere")))) == ["Created"]


def test_a_move_into_a_topic_that_is_then_given_up_wants_a_resync(core: CacheCore) -> None:
    core.apply([event(1)])
    core.apply(events_of(Change(2, "set", "port", "k", "u", None, "t"))[1:])
    core.remove_topic("u")
    assert core.wants_resync


def test_forgotten_tombstones_make_old_news_doubtful_until_a_delta() -> None:
    core = CacheCore(None, ["t"], tombstones_max=4)
    core.apply([event(number, "delete", key=f"k{number}") for number in range(1, 7)])
    assert core.wants_resync
    assert core.tombstones <= 4
    assert core.apply([event(1, key="x")]) == []
    assert core.counters.doubtful == 1
    core.advance(6)
    assert not core.wants_resync
    assert core.tombstones == 0


def test_a_database_that_went_back_replaces_what_is_held(core: CacheCore) -> None:
    load(core, 50, row(40, key="kept"), row(45, key="undone", value="new"), row(50, key="never"))
    told = load(core, 30, row(20, key="kept"), row(30, key="undone", value="old"), replaces=True)
    assert kinds(told) == ["Updated", "Updated", "Deleted"]
    assert [(found.key, found.version) for found in held(core)] == [("kept", 20), ("undone", 30)]
    assert core.newest == core.position == 30


@pytest.mark.parametrize(("lost", "stored"), [(1, True), (1, 1.0), (0.0, -0.0), ({"on": 0}, {"on": False})])
def test_a_value_of_another_history_is_taken_although_python_calls_it_equal(
    core: CacheCore, lost: Any, stored: Any
) -> None:
    load(core, 30, row(30, value=lost))
    assert kinds(load(core, 30, row(30, value=stored), replaces=True)) == ["Updated"]
    assert repr(held(core)[0].value) == repr(stored)


@pytest.mark.parametrize("order", [1, -1])
def test_a_value_that_another_history_has_too_is_no_difference(core: CacheCore, order: int) -> None:
    fields = [("a", float("nan")), ("b", 1)]
    load(core, 30, row(30, value=dict(fields)))
    assert load(core, 30, row(30, value=dict(fields[::order])), replaces=True) == []


def test_an_event_after_the_database_went_back_is_not_undone(core: CacheCore) -> None:
    load(core, 50, row(50, key="k"))
    merge = core.merge(10, core.filters, replaces=True)
    core.apply([event(51), event(11, key="l")])
    merge.rows([row(9)])
    merge.finish()
    assert [(found.key, found.version) for found in held(core)] == [("k", 51), ("l", 11)]


def test_an_absurd_version_shows_as_a_database_that_went_back(core: CacheCore) -> None:
    load(core, 10, row(10))
    core.apply([event(2**63 - 1, value="poison")])
    assert core.newest > 10
    load(core, 10, row(10), replaces=True)
    assert held(core) == [row(10)]


@pytest.mark.parametrize("is_snapshot", [False, True])
@pytest.mark.parametrize("is_dict", [False, True])
def test_a_deep_value_loses_no_change_however_deep_the_stack_is(
    core: CacheCore, is_snapshot: bool, is_dict: bool
) -> None:
    """It was decoded with less of the stack in use."""
    value: Any = [1, "é", b"b", {3: None, (4, 5): 6.5}]
    for _ in range(900):
        value = {"a": 1, "b": value} if is_dict else [1, value]
    rows = [row(1, key="k"), row(2, key="l", value=value), row(3, key="m")]
    told = _deep_in_the_stack(
        lambda: (
            load(core, 3, *rows)
            if is_snapshot
            else core.apply([event(one.version, key=one.key, value=one.value) for one in rows])
        )
    )
    assert kinds(told) == ["Created"] * 3
    core.apply([event(4, key="k")])
    assert _deep_in_the_stack(lambda: core.update(event(5, key="l", value=value))).version == 5
    entries = core.tables["port"]
    assert pack(entries["l"].value) == pack(value)


def _deep_in_the_stack(call: Callable[[], Any], depth: int = 100) -> Any:
    return _deep_in_the_stack(call, depth - 1) if depth else call()


def test_removing_a_topic_drops_what_no_other_filter_selects() -> None:
    core = CacheCore(None, ["a/#", "a/x"], tombstones_max=10)
    core.apply([event(1, topic="a/x", key="k"), event(2, topic="a/y", key="l")])
    assert core.remove_topic("a/#") == [deleted(row(2, topic="a/y", key="l"), 2, "unfollowed")]
    assert core.remove_topic("a/#") == []


def test_differences_are_only_counted_when_nobody_listens(core: CacheCore) -> None:
    core.want_differences(False)
    assert load(core, 2, row(1), row(2, key="l")) == []
    assert core.counters.created == 2
    assert core.objects == 2


def test_names_of_topics_are_kept_once(core: CacheCore) -> None:
    load(core, 2, row(1, topic="".join("t")), row(2, key="l", topic="".join(["", "t"])))
    topics = {id(entry.topic) for entry in core.tables["port"].values()}
    assert len(topics) == 1


def test_a_change_prints_the_object_and_not_what_the_cache_holds() -> None:
    now, before = row(2, value=[1]), row(1)
    assert repr(created(now)) == f"Created(object={now!r})"
    assert repr(updated(now, before)) == f"Updated(object={now!r}, before={before!r})"
    assert repr(deleted(now, 3)) == f"Deleted(object={now!r}, version=3, reason='deleted', moved_to=None)"
