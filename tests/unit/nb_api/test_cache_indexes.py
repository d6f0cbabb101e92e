"""Indexes and selections of a local cache: after any history they say what looking through all objects would."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import invariant, precondition, rule

from nb_api.core.copy.cache import CacheCore
from nb_api.core.copy.differences import CachedObject, Deleted, Difference, pack
from nb_api.core.copy.indexes import IndexData
from nb_api.core.copy.sorted_values import SortedValues
from nb_api.core.events import events_of
from nb_api.db_api import Change, DbObject
from pubsub_api import Event
from pubsub_api.errors import UsageError
from tests.helpers.cache_model import FIELDS, TABLES, CacheMachine, held

errors: list[tuple[str, str]] = []


def by_net(found: DbObject) -> Any:
    if found.value["net"] == "broken":
        raise KeyError("net")
    return found.value["net"]


def by_tag(found: DbObject) -> Any:
    return found.value.get("tags")


def by_number(found: DbObject) -> Any:
    return None if found.value["net"] is None else found.value["n"]


def make_index(name: str, function: Any, *, table: str = "port", **kind: bool) -> IndexData:
    kinds = {"is_unique": False, "is_multiple": False, "is_sorted": False, **kind}
    return IndexData(name, table, function, **kinds, on_error=lambda index, key, _: errors.append((index.name, key)))


def scanned(core: CacheCore, index: IndexData) -> dict[Hashable, list[str]]:
    """What an index must hold, found by looking at all objects."""
    out: dict[Hashable, list[str]] = {}
    for found in core.find_all(index.table):
        try:
            values = index.function(found)
        except KeyError:
            continue
        for value in () if values is None else set(values) if index.is_multiple else (values,):
            out.setdefault(value, []).append(found.key)
    return out


def indexed(index: IndexData) -> dict[Hashable, list[str]]:
    return {value: sorted(index.keys(value)) for value in index.holders}


class IndexMachine(CacheMachine):
    """The same faults as for the copy; one index is there from the beginning, others come late."""

    def make_core(self, tombstones_max: int) -> CacheCore:
        core = super().make_core(tombstones_max)
        self.indexes = [make_index("by_net", by_net)]
        core.add_index(self.indexes[0])
        return core

    @rule(
        writes=st.lists(
            st.tuples(st.sampled_from("kkl"), st.sampled_from(["a/x", "a/x", "b"]), FIELDS), min_size=2, max_size=5
        )
    )
    def write_several(self, writes: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Of few objects, so that each has several versions that may overtake each other."""
        for key, topic, fields in writes:
            self.write("port", key, topic, False, False, fields)

    @precondition(lambda self: len(self.indexes) < 3)
    @rule()
    def add_index(self) -> None:
        late = [make_index("by_tag", by_tag, is_multiple=True), make_index("by_number", by_number, is_sorted=True)]
        self.indexes.append(late[len(self.indexes) - 1])
        self.core.add_index(self.indexes[-1])

    @precondition(lambda self: self.merge is None and self.opened is None and self.is_loaded)
    @rule()
    def restore_a_backup(self) -> None:
        """The database has lost its history, and nothing of before is under way: the rows win over what is held."""
        self.under_way.clear()
        self.delivered.clear()
        merge = self.core.merge(self.db.revision, list(self.core.filters), replaces=True)
        self.copy.hear(merge.rows(self.db.rows(self.core.filters, TABLES)) + merge.finish())

    @invariant()
    def an_index_is_what_a_scan_finds(self) -> None:
        for index in self.indexes:
            assert indexed(index) == scanned(self.core, index)
            if index.order is not None:
                assert list(index.order.between(None, None)) == sorted(index.holders)

    @invariant()
    def what_failed_is_what_is_broken(self) -> None:
        broken = {found.key for found in self.core.find_all("port") if found.value["net"] == "broken"}
        assert self.indexes[0].failed == broken


class SelectingMachine(IndexMachine):
    """The cache selects by a field as well."""

    def make_core(self, tombstones_max: int) -> CacheCore:
        tables = {"port": {"host": "h7"}, "net": None}
        core = CacheCore(tables, ["a/#"], tombstones_max=tombstones_max)
        self.indexes = [make_index("by_net", by_net)]
        core.add_index(self.indexes[0])
        core.merge(0, ["a/#"]).finish()
        self.is_loaded = True  # of a database that is still empty: from here on everything depends on live events
        return core

    def selects(self, row: DbObject) -> bool:
        return row.table != "port" or row.value["host"] == "h7"

    @invariant()
    def nothing_unselected_is_held(self) -> None:
        assert all(map(self.selects, held(self.core)))


TestIndexes = IndexMachine.TestCase
TestIndexes.settings = settings(max_examples=35, stateful_step_count=30)
TestSelections = SelectingMachine.TestCase
TestSelections.settings = settings(max_examples=50, stateful_step_count=30)


# -- one behaviour, one test


def event(version: int, value: Any = None, *, key: str = "k", action: str = "set", topic: str = "t") -> Event:
    return Event(topic=topic, table="port", key=key, action=action, value=value, version=version)  # type: ignore[arg-type]


@pytest.fixture
def core() -> CacheCore:
    errors.clear()
    return CacheCore(["port"], ["t"], tombstones_max=100)


def reasons(differences: list[Difference]) -> list[tuple[str, str | None]]:
    return [(one.reason, one.moved_to) for one in differences if isinstance(one, Deleted)]


def test_a_value_that_no_object_has_any_more_leaves_nothing(core: CacheCore) -> None:
    index = make_index("by_net", by_net, is_sorted=True)
    core.add_index(index)
    for number in range(100):
        core.apply([event(2 * number + 1, {"net": f"n{number}"}, key="a"), event(2 * number + 2, {"net": "same"})])
    core.apply([event(999, action="delete", key="a"), event(1000, action="delete")])
    assert index.holders == {}
    assert list(index.order.between(None, None)) == []  # type: ignore[union-attr]


def test_a_function_that_raises_harms_nothing_but_its_own_index(core: CacheCore) -> None:
    broken, sound = make_index("broken", by_net), make_index("sound", lambda found: found.key)
    core.add_index(broken)
    core.add_index(sound)
    told = core.apply([event(1, {"net": "x"}), event(2, {"net": "broken"}), event(3, {"net": "x"}, key="l")])
    assert len(told) == 3
    assert indexed(broken) == {"x": ["l"]}
    assert indexed(sound) == {"k": ["k"], "l": ["l"]}
    assert (broken.errors, broken.failed, errors) == (1, {"k"}, [("broken", "k")])
    core.apply([event(4, {"net": "y"})])  # tried again with the next version
    assert indexed(broken) == {"x": ["l"], "y": ["k"]}
    assert not broken.failed


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, RecursionError])
def test_whatever_a_function_raises_the_change_is_told(core: CacheCore, raised: type[BaseException]) -> None:
    def refuse(found: DbObject) -> Any:
        raise raised("no")

    index = make_index("index", refuse)
    core.add_index(index)
    assert len(core.apply([event(1), event(2, key="l")])) == 2
    assert index.failed == {"k", "l"}


@pytest.mark.parametrize(
    ("value", "kind"),
    [([], {}), ("text", {"is_multiple": True}), (5, {"is_multiple": True}), ([[]], {"is_multiple": True}),
     (math.nan, {"is_sorted": True}), (1j, {"is_sorted": True}), ({}, {"is_sorted": True}),
     ((1, (math.nan,)), {"is_sorted": True}), ((None, "k"), {"is_sorted": True}), (frozenset("a"), {"is_sorted": True}),
     ([1, math.nan], {"is_sorted": True, "is_multiple": True})],
)  # fmt: skip
def test_a_value_that_an_index_cannot_hold_is_an_error(core: CacheCore, value: Any, kind: dict[str, bool]) -> None:
    index = make_index("index", lambda _: value, **kind)
    core.add_index(index)
    assert len(core.apply([event(1)])) == 1
    assert (index.holders, index.failed) == ({}, {"k"})


def test_a_value_that_cannot_be_compared_with_the_others_is_an_error(core: CacheCore) -> None:
    index = make_index("index", lambda found: found.value, is_sorted=True, is_multiple=True)
    core.add_index(index)
    core.apply([event(1, [3, 1], key="a"), event(2, [2, "text"], key="b")])
    assert (indexed(index), index.failed) == ({1: ["a"], 3: ["a"]}, {"b"})
    assert list(index.order.between(None, None)) == [1, 3]  # type: ignore[union-attr]


class Moody:
    """A value of a program's own type, which compares and hashes as it likes at the moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_broken = False

    def _now(self) -> int:
        if self.is_broken:
            raise RuntimeError("not now")
        return self.number

    def __hash__(self) -> int:
        return hash(self._now())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moody) and self._now() == other._now()

    def __lt__(self, other: Moody) -> bool:
        return self._now() < other._now()


@pytest.mark.parametrize("kind", [{}, {"is_sorted": True}])
@pytest.mark.parametrize("spoil", [{"is_broken": True}, {"number": 77}, {"number": 3}])
def test_values_that_change_keep_no_change_from_being_told(
    core: CacheCore, kind: dict[str, bool], spoil: dict[str, Any]
) -> None:
    values = [Moody(number) for number in range(6)]
    index = make_index("index", lambda found: values[found.value], **kind)
    core.add_index(index)
    core.apply([event(number + 1, number, key=f"k{number}") for number in range(6)])
    for name, value in spoil.items():
        setattr(values[1], name, value)
    told = core.apply(
        [event(10, action="delete", key="k1"), event(11, 0, key="k2"), event(12, action="delete", key="k3")]
    )
    assert [(type(one).__name__, one.key) for one in told] == [("Deleted", "k1"), ("Updated", "k2"), ("Deleted", "k3")]
    assert index.errors
    assert indexed(index) == {values[0]: ["k0", "k2"], values[4]: ["k4"], values[5]: ["k5"]}
    if index.order is not None:
        assert list(index.order.between(None, None)) == [values[0], values[4], values[5]]


def test_values_of_which_none_is_less_are_not_both_in_an_order(core: CacheCore) -> None:
    """Such a value would be found at one place and looked for at another."""

    class Rank(Moody):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    ranks = [Rank(1), Rank(1), Rank(0), Rank(2), Rank(0)]
    index = make_index("index", lambda found: ranks[found.value], is_sorted=True)
    core.add_index(index)
    core.apply([event(number + 1, number, key=f"k{number}") for number in range(5)])
    assert index.failed == {"k1", "k4"}
    assert list(index.order.between(None, None)) == [ranks[2], ranks[0], ranks[3]]  # type: ignore[union-attr]


@pytest.mark.parametrize("bound", [math.nan, (1, math.nan), frozenset("a"), 1j])
def test_a_bound_without_an_order_is_refused(bound: Any) -> None:
    values = SortedValues()
    for bounds in ((bound, None), (None, bound)):
        with pytest.raises(TypeError):
            list(values.between(*bounds))


def test_a_function_whose_answer_changes_leaves_no_traces(core: CacheCore) -> None:
    answers = iter(range(100))
    index = make_index("index", lambda _: next(answers))
    core.add_index(index)
    for version in range(1, 11):
        core.apply([event(version)])
    assert indexed(index) == {9: ["k"]}
    core.apply([event(11, action="delete")])
    assert index.holders == {}


def test_several_holders_of_a_unique_value_are_counted(core: CacheCore) -> None:
    index = make_index("index", lambda found: found.value, is_unique=True)
    core.add_index(index)
    core.apply([event(1, "x", key="a"), event(2, "x", key="b")])
    assert index.conflicts == 1
    core.apply([event(3, "y", key="a")])
    assert indexed(index) == {"x": ["b"], "y": ["a"]}


def test_a_function_cannot_change_what_is_held(core: CacheCore) -> None:
    def spoil(found: DbObject) -> Any:
        found.value["tags"].append("spoilt")
        return len(found.value["tags"])

    first, second = make_index("first", spoil), make_index("second", spoil)
    core.add_index(first)
    core.add_index(second)
    core.apply([event(1, {"tags": []})])
    assert core.find("port", "k").value == {"tags": []}  # type: ignore[union-attr]
    assert indexed(first) == indexed(second) == {1: ["k"]}


# -- why an object is gone


def test_each_way_out_of_a_copy_is_told_apart() -> None:
    core = CacheCore(["port"], ["t", "u"], tombstones_max=100, where={"up": True})
    up = {"up": True}

    def put(version: int, topic: str = "t") -> None:
        core.apply([event(version, up, topic=topic)])

    put(1)
    assert reasons(core.apply([event(2, action="delete")])) == [("deleted", None)]
    put(3)
    assert reasons(core.apply(events_of(Change(4, "set", "port", "k", "away", up, "t")))) == [("moved", "away")]
    put(5)
    assert reasons(core.apply([event(6, {"up": False})])) == [("unselected", None)]
    put(7, "u")
    assert reasons(core.remove_topic("u")) == [("unfollowed", None)]
    put(8)
    merge = core.merge(9, ["t"])
    assert reasons(merge.finish()) == [("absent", None)]
    put(10)
    merge = core.merge(11, ["t"])
    told = merge.rows([DbObject("port", "k", "t", {"up": False}, 11)]) + merge.finish()
    assert reasons(told) == [("unselected", None)]


def test_what_is_in_no_topic_of_a_whole_snapshot_was_deleted() -> None:
    core = CacheCore(None, ["#"], tombstones_max=100)
    core.apply([event(1)])
    assert reasons(core.merge(2, ["#"]).finish()) == [("deleted", None)]


def test_an_older_selected_version_does_not_bring_back_what_left_the_selection() -> None:
    core = CacheCore(["port"], ["t"], tombstones_max=100, where={"up": True})
    assert core.apply([event(6, {"up": False}), event(5, {"up": True})]) == []
    assert core.counters.unselected == 1
    assert core.find("port", "k") is None


def test_a_selection_that_passes_much_by_asks_for_a_delta_before_it_forgets() -> None:
    core = CacheCore(["port"], ["t"], tombstones_max=100, where={"up": True})
    core.apply([event(number, {"up": False}, key=f"k{number}") for number in range(1, 52)])
    assert core.wants_resync
    assert core.counters.tombstones_forgotten == 0
    core.advance(51)
    assert not core.wants_resync


@pytest.mark.parametrize("value", [None, 5, "text", [], {}, {"up": False}, {"up": None}])
def test_what_lacks_the_field_is_not_selected(value: Any) -> None:
    core = CacheCore(["port"], ["t"], tombstones_max=100, where={"up": True})
    assert core.apply([event(1, value)]) == []


@pytest.mark.parametrize(
    ("wanted", "selected", "others"),
    [(True, [True], [1, 1.0, False, "True"]), (1, [1, 1.0], [True]), (0, [0, 0.0], [False, None]),
     ([True, {"a": 0}], [[True, {"a": 0}]], [[1, {"a": 0}], [True, {"a": False}]]), ("up", ["up"], [b"up", "UP"]),
     (None, [None], [0, False, ""])],
)  # fmt: skip
def test_what_is_true_is_no_number(wanted: Any, selected: list[Any], others: list[Any]) -> None:
    core = CacheCore(["port"], ["t"], tombstones_max=100, where={"up": wanted})
    for number, value in enumerate([*selected, *others]):
        is_told = bool(core.apply([event(number + 1, {"up": value}, key=f"k{number}")]))
        assert is_told == (number < len(selected))


class Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "wanted", [("a", "b"), {"a"}, frozenset(), math.nan, [("a",)], {"a": (1,)}, [math.nan], 1j, object(), 2**70]
)
def test_a_selection_that_no_object_can_meet_is_refused(wanted: Any) -> None:
    with pytest.raises(UsageError):
        CacheCore(["port"], ["t"], tombstones_max=100, where={"h": wanted})
    with pytest.raises(UsageError):
        CacheCore({"port": {"h": wanted}}, ["t"], tombstones_max=100)


def test_a_selection_may_be_of_what_equals_its_text() -> None:
    core = CacheCore(["port"], ["t"], tombstones_max=100, where={"color": Color.RED})
    assert len(core.apply([event(1, {"color": "red"})])) == 1


# -- values in order


@given(st.lists(st.integers(0, 50)), st.integers(-1, 51), st.integers(-1, 51))
def test_sorted_values_are_a_sorted_set(numbers: list[int], low: int, high: int) -> None:
    values, model = SortedValues(), set[int]()
    for number in numbers:
        if number in model:
            values.remove(number)
        else:
            values.add(number)
        model ^= {number}
    assert list(values.between(None, None)) == sorted(model)
    assert list(values.between(low, high)) == [number for number in sorted(model) if low <= number < high]
    assert list(values.between(low, None)) == [number for number in sorted(model) if low <= number]
    assert list(values.between(None, high)) == [number for number in sorted(model) if number < high]


def test_many_sorted_values_are_kept_in_portions() -> None:
    values = SortedValues()
    for number in range(10_000):
        values.add(number * 7919 % 10_007)
    everything = sorted(number * 7919 % 10_007 for number in range(10_000))
    assert list(values.between(None, None)) == everything
    assert list(values.between(4000, 6000)) == [number for number in everything if 4000 <= number < 6000]
    for number in everything[::2]:
        values.remove(number)
    assert list(values.between(None, None)) == everything[1::2]


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("damaged", [None, CachedObject(1, "t", pack({"net": "x"}))])
def test_a_repaired_object_stands_only_where_it_belongs(
    core: CacheCore, damaged: CachedObject | None, others: int
) -> None:
    """Whatever an error in memory left of it, its value in the index, too, may be another one than it was put under."""
    index = make_index("by_net", by_net)
    core.add_index(index)
    core.apply([event(1, {"net": "x"})])
    core.apply([event(2 + number, {"net": "x"}, key=f"other{number}") for number in range(others)])
    entries: Any = core.tables["port"]
    if damaged is None:
        del entries["k"]
    else:
        entries["k"] = damaged
    assert core.repair("port", "k", damaged, DbObject("port", "k", "t", {"net": "y"}, 9), [])
    assert indexed(index) == scanned(core, index)
    core.apply([event(10, {"net": "z"})])
    assert indexed(index) == scanned(core, index)
