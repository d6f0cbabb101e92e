"""What index functions, look-ups and consumers of a local cache may do wrong, and what that must not break."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nb_api import Controller, DbObject, Deleted, LocalCache, NbApi
from nb_api.cache.index import Index
from pubsub_api.errors import Closed, Forked, UsageError
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.nb_worlds import WAIT_S, Told
from tests.helpers.waiting import wait_until

LOOK_UPS: dict[str, Callable[[Index], object]] = {
    "get": lambda index: index.get("p1"),
    "one": lambda index: index.one("p1"),
    "keys": lambda index: index.keys("p1"),
    "values": lambda index: index.values(),
    "range": lambda index: index.range(),
    "failed": lambda index: index.failed,
    "len": len,
}


@pytest.fixture
def nb(tmp_path: Path) -> Iterator[NbApi]:
    with NbApi.open(f"sqlite://{tmp_path}/objects.db") as opened:
        yield opened


def test_values_without_an_order_keep_no_change_from_being_told(nb: NbApi) -> None:
    told = Told()
    weights = [5.0, math.nan, 1.0, 3.0, math.nan, 0.0, 2.0]
    with LocalCache(nb, tables=["port"], on_changes=told) as cache:
        index = cache.index("by_weight", lambda port: (port.value["w"], port.key), sorted=True)
        for number, weight in enumerate(weights):
            version = nb.create("port", f"p{number}", {"w": weight}, topic="t")
        cache.wait_version("port", "p6", version, timeout_s=WAIT_S)
        assert index.failed == ["p1", "p4"]
        assert cache.statistics().indexes.errors == 2
        assert [found.key for found in index.range()] == ["p5", "p2", "p6", "p3", "p0"]
        with nb.transaction() as txn:
            for number in (1, 4, 2, 0):
                txn.delete("port", f"p{number}")
            txn.create("port", "last", {"w": 7.0}, topic="t")
        cache.wait_version("port", "last", txn.versions[-1], timeout_s=WAIT_S)
        wait_until(lambda: "Created last" in told.kinds(), WAIT_S, "the last one to be told")
        assert sorted(told.kinds(Deleted)) == [f"Deleted p{number}" for number in (0, 1, 2, 4)]
        assert [found.key for found in index.range()] == ["p5", "p6", "p3", "last"]
        assert index.failed == []


# -- the end of a cache


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
def test_an_index_of_a_closed_cache_is_closed(nb: NbApi, look_up: Callable[[Index], object]) -> None:
    with LocalCache(nb, tables=["port"]) as cache:
        index = cache.index("by_key", lambda port: port.key, unique=True, sorted=True)
        look_up(index)
    with pytest.raises(Closed):
        look_up(index)
    assert repr(index) == "<Index 'by_key' of 'port': 0 values>"


def test_an_index_does_not_live_on_in_a_forked_child(nb: NbApi) -> None:
    """The fork falls while another index is built: the lock of that is held for ever in the child."""
    version = nb.create("port", "p1", {}, topic="t")
    is_building, go_on = threading.Event(), threading.Event()

    def wait(port: DbObject) -> str:
        is_building.set()
        go_on.wait(WAIT_S)
        return port.key

    with LocalCache(nb, tables=["port"]) as cache:
        index = cache.index("by_key", lambda port: port.key, unique=True, sorted=True)
        cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
        builder = threading.Thread(target=cache.index, args=("slow", wait))
        builder.start()
        try:
            assert is_building.wait(WAIT_S)
            for look_up in LOOK_UPS.values():
                assert in_forked_child(lambda look_up=look_up: outcome(lambda: look_up(index))) == Forked.__name__  # type: ignore[misc]
            added = in_forked_child(lambda: outcome(lambda: cache.index("late", lambda port: port.key)))
            assert added == Forked.__name__
        finally:
            go_on.set()
            builder.join()
        assert index.keys("p1") == cache.index("slow").keys("p1") == ["p1"]


# -- what is refused


def test_a_consumer_of_tables_that_are_not_followed_is_refused(nb: NbApi) -> None:
    wrong: list[Any] = ["port", ["prot"], ["port", "prot"], 5, [5], b"port"]
    with LocalCache(nb, tables=["port"]) as cache:
        for tables in wrong:
            with pytest.raises(UsageError):
                cache.subscribe(tables=tables)
        with pytest.raises(UsageError):
            Controller(cache, lambda _: None, tables=["prot"])
        assert cache.statistics().telling.subscriptions == 1
        cache.subscribe(tables=iter(["port"])).close()
    with LocalCache(nb) as cache:
        cache.subscribe(tables=["of any name"]).close()


def test_of_a_table_that_is_not_followed_nothing_is_known(nb: NbApi) -> None:
    nb.create("prot", "p1", 1, topic="t")
    with LocalCache(nb, tables=["port"]) as cache:
        with pytest.raises(UsageError, match="table 'prot' is not followed by this cache"):
            cache.get_all("prot")
        with pytest.raises(UsageError, match="table 'prot' is not followed by this cache"):
            cache.get("prot", "p1")
        assert cache.get_all("port") == []


def test_a_list_as_the_value_of_an_index_names_the_way_out(nb: NbApi, caplog: pytest.LogCaptureFixture) -> None:
    nb.create("port", "p1", {"tags": ["a", "b"]}, topic="t")
    with LocalCache(nb, tables=["port"]) as cache:
        cache.wait_synced(timeout_s=60)
        index = cache.index("by_tag", lambda port: port.value["tags"])
        assert [*index.failed] == ["p1"]
    assert "with multiple=True each of its elements is" in caplog.text


@pytest.mark.parametrize("function", [5, "net", ()])
def test_an_index_is_made_of_a_function(nb: NbApi, function: Any) -> None:
    with LocalCache(nb, tables=["port"]) as cache, pytest.raises(UsageError):
        cache.index("by_net", function)


CHANGES: dict[str, Callable[[LocalCache], object]] = {
    "index": lambda cache: cache.index("inner", lambda port: port.key),
    "subscribe": lambda cache: cache.subscribe(Told()),
    "add_topic": lambda cache: cache.add_topic("other"),
    "remove_topic": lambda cache: cache.remove_topic("t"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_index_function_reads_the_cache_and_does_not_change_it(
    nb: NbApi, change: Callable[[LocalCache], object]
) -> None:
    """When it is built, and when an object changes."""
    refused: list[str] = []
    told = Told()

    def function(port: DbObject) -> Any:
        refused.append(outcome(lambda: change(cache)))
        return cache.get("port", port.key).value["n"], cache.index("by_key").keys(port.key)[0]

    version = nb.create("port", "p1", {"n": 1}, topic="t")
    with LocalCache(nb, tables=["port"], topics=["t"], on_changes=told) as cache:
        cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
        cache.index("by_key", lambda port: port.key)
        outer = cache.index("outer", function)
        version = nb.update("port", "p1", {"n": 2})
        cache.wait_version("port", "p1", version, timeout_s=WAIT_S)
        assert outer.keys((2, "p1")) == ["p1"]
        assert [text.partition("(")[0] for text in refused] == [UsageError.__name__] * 2
        wait_until(lambda: "Updated p1" in told.kinds(), WAIT_S, "the change to be told")
        change(cache)
