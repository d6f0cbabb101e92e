"""A controller over a real local cache: the bus or the feed, resyncs, moves, and what its own runs write."""

from __future__ import annotations

import pathlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from nb_api import Controller, LocalCache, Request, RetryPauses
from pubsub_api.errors import Closed
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.nb_worlds import Told, World
from tests.helpers.waiting import WAIT_S, wait_until


@pytest.fixture(params=["feed", "bus"])
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    bus = memory_bus() if request.param == "bus" else None
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    yield world
    world.close()


class Flows:
    """Keeps a table of flows equal to the ports, with the network and the binding of each."""

    def __init__(self, cache: LocalCache) -> None:
        self.flows: dict[str, tuple[object, ...]] = {}
        self.runs: Counter[str] = Counter()
        self.endings: dict[str, list[str | None]] = defaultdict(list)
        self.cache = cache

    def reconcile(self, request: Request) -> None:
        self.runs[request.key] += 1
        if request.object is None:
            self.endings[request.key].append(request.ending)
            self.flows.pop(request.key, None)
            return
        nets = {net.key: net.value for net in self.cache.get_all("net")}
        hosts = [bound.value["host"] for bound in self.cache.get_all("binding") if bound.value["port"] == request.key]
        self.flows[request.key] = (nets.get(request.object.value["net"]), *hosts)

    def controller(self) -> Controller:
        owners = {
            "net": lambda net: [
                ("port", port.key) for port in self.cache.get_all("port") if port.value["net"] == net.key
            ],
            "binding": lambda binding: [("port", binding.value["port"])],
        }
        return Controller(
            self.cache, self.reconcile, owners=owners, interval_min_s=0.0, retries=RetryPauses(0.01, 0.1)
        )  # fmt: skip


def test_flows_follow_three_tables(world: World) -> None:
    nb = world.nb
    nb.create("net", "n1", {"mtu": 1500}, topic="t")
    nb.create("port", "p1", {"net": "n1"}, topic="t")
    flows = Flows(world.cache(is_awaited=False))
    with flows.controller() as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert flows.flows == {"p1": ({"mtu": 1500},)}
        nb.create("port", "p2", {"net": "n1"}, topic="t")
        nb.create("binding", "b1", {"port": "p1", "host": "h1"}, topic="t")
        wait_until(lambda: flows.flows == {"p1": ({"mtu": 1500}, "h1"), "p2": ({"mtu": 1500},)}, what="both ports")
        nb.update("binding", "b1", {"port": "p2", "host": "h2"})
        wait_until(lambda: flows.flows == {"p1": ({"mtu": 1500},), "p2": ({"mtu": 1500}, "h2")}, what="the move")
        nb.update("net", "n1", {"mtu": 9000})
        wait_until(lambda: flows.flows == {"p1": ({"mtu": 9000},), "p2": ({"mtu": 9000}, "h2")}, what="the network")
        nb.delete("port", "p1")
        wait_until(lambda: set(flows.flows) == {"p2"}, what="the end of p1")


def test_a_resync_runs_what_differs_and_nothing_else(world: World) -> None:
    for number in range(20):
        world.nb.create("port", f"p{number}", {"net": "n1"}, topic="t")
    cache = world.cache()
    flows = Flows(cache)
    with flows.controller() as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert set(flows.runs.values()) == {1}
        read = cache.statistics().syncs.snapshots
        cache.need_snapshot("a test", is_awaited=True)
        wait_until(lambda: cache.statistics().syncs.snapshots > read, what="everything to be read")
        world.nb.update("port", "p7", {"net": "n2"})
        wait_until(lambda: flows.runs["p7"] == 2, what="what differs")
        controller.wait_idle(timeout_s=WAIT_S)
        assert sum(flows.runs.values()) == 21


def test_a_topic_that_is_left_is_a_delete_and_one_that_is_new_a_create(world: World) -> None:
    world.nb.create("port", "p1", {"net": "n1"}, topic="a")
    world.nb.create("port", "p2", {"net": "n1"}, topic="b")
    cache = world.cache(topics=["a"])
    flows = Flows(cache)
    with flows.controller() as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert set(flows.flows) == {"p1"}
        cache.add_topic("b")
        wait_until(lambda: set(flows.flows) == {"p1", "p2"}, what="the new topic")
        cache.remove_topic("a")
        wait_until(lambda: set(flows.flows) == {"p2"}, what="the topic that is left")
        world.nb.update("port", "p2", {"net": "n1"}, topic="c")
        wait_until(lambda: flows.flows == {}, what="the move to a topic that is not followed")
        controller.wait_idle(timeout_s=WAIT_S)
        assert flows.endings["p1"] == ["unfollowed"]
        assert flows.endings["p2"] in (["moved"], ["absent"])
        world.nb.create("port", "p3", {"net": "n1"}, topic="b")
        wait_until(lambda: "p3" in flows.flows, what="p3")
        world.nb.delete("port", "p3")
        wait_until(lambda: flows.endings["p3"], what="its end")
        assert flows.endings["p3"] in (["deleted"], ["absent"])


def test_a_copy_of_no_topic_is_complete(world: World) -> None:
    cache = world.cache(topics=[])
    flows = Flows(cache)
    with flows.controller() as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert flows.runs == Counter()


def test_controllers_and_other_consumers_share_one_copy(world: World) -> None:
    for number in range(5):
        world.nb.create("port", f"p{number}", {"net": "n1"}, topic="t")
    told = Told()
    cache = world.cache(on_changes=told)
    many = [Flows(cache), Flows(cache)]
    with many[0].controller() as first, many[1].controller() as second:
        first.wait_idle(timeout_s=WAIT_S)
        second.wait_idle(timeout_s=WAIT_S)
        assert [sum(flows.runs.values()) for flows in many] == [5, 5]
        first.close()
        world.nb.update("port", "p0", {"net": "n2"})
        wait_until(lambda: many[1].runs["p0"] == 2, what="the other to go on")
        wait_until(lambda: "Updated p0" in told.kinds(), what="the callback to be told")
        assert many[0].runs["p0"] == 1


def test_more_objects_than_the_copy_tells_one_by_one_run_once_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 10)
    for first in range(0, 1500, 500):
        with world.nb.transaction() as txn:
            for number in range(first, first + 500):
                txn.create("port", f"p{number}", {"net": "n1"}, topic="t")
    cache = world.cache(is_awaited=False)
    flows = Flows(cache)
    with flows.controller() as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert len(flows.flows) == 1500
        assert sum(flows.runs.values()) == 1500


def test_what_a_run_writes_itself_causes_no_run_when_it_changes_nothing(world: World) -> None:
    runs: Counter[str] = Counter()
    cache = world.cache()

    def reconcile(request: Request) -> None:
        runs[request.key] += 1
        world.nb.put("status", request.key, {"done": True}, topic="t")

    with Controller(cache, reconcile, tables=["port"], owners={"status": lambda found: [("port", found.key)]}):
        world.nb.create("port", "p1", {}, topic="t")
        wait_until(lambda: runs["p1"] == 2, what="the run for its own first write")
        world.nb.create("port", "p2", {}, topic="t")
        wait_until(lambda: runs["p2"] == 2, what="the other key")
        assert runs["p1"] == 2


def test_a_run_that_waits_for_what_it_created_creates_no_second_one(world: World) -> None:
    cache = world.cache()

    def reconcile(request: Request) -> None:
        if request.object is None or cache.get_all("machine"):
            return
        name = f"m{world.nb.allocate('machines')}"
        cache.wait_version("machine", name, world.nb.create("machine", name, {}, topic="t"), timeout_s=WAIT_S)

    with Controller(cache, reconcile, workers=1, tables=["port"], interval_min_s=0.0) as controller:
        for number in range(5):
            world.nb.create("port", f"p{number}", {}, topic="t")
        wait_until(lambda: controller.statistics().runs >= 5, what="a run of each")
        controller.wait_idle(timeout_s=WAIT_S)
    assert len(world.nb.get_all("machine")) == 1


def test_a_run_that_always_changes_its_object_is_slow_and_visible(world: World) -> None:
    cache = world.cache()
    began_at = time.monotonic()

    def reconcile(request: Request) -> None:
        if request.object is not None:
            world.nb.update("port", request.key, {"runs": request.object.value["runs"] + 1})

    with Controller(cache, reconcile, interval_min_s=0.2) as controller:
        world.nb.create("port", "p1", {"runs": 0}, topic="t")
        wait_until(lambda: controller.statistics().runs >= 4, what="the loop")
        runs = controller.statistics().runs
        assert runs <= (time.monotonic() - began_at) / 0.2 + 2


def test_a_controller_ends_with_its_cache(world: World) -> None:
    cache = world.cache()
    controller = Controller(cache, lambda _: None)
    controller.wait_idle(timeout_s=WAIT_S)
    cache.close()
    with pytest.raises(Closed):
        wait_until(lambda: controller.wait_idle(timeout_s=WAIT_S), what="it to end with the cache")
    controller.close()
