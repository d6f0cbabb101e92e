"""The fixtures that Heliograph ships: a whole system within a test, time that a test moves, and its faults."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest

from nb_api import Request, RequeueAfter
from nb_api.testing.memory_system import MemoryBus, MemorySystem
from nb_api.testing.virtual_time import VirtualTime
from pubsub_api import Event
from pubsub_api.errors import UsageError, WaitTimeout
from tests.helpers.paths import ROOT

HOUR_S = 3600.0


class World:
    """What a controller has made: its reconcile function notes what it saw."""

    def __init__(self, result: RequeueAfter | None = None) -> None:
        self.made: dict[str, object] = {}
        self.runs = 0
        self.failures = 0
        self._result = result
        self._lock = threading.Lock()

    def reconcile(self, request: Request) -> RequeueAfter | None:
        with self._lock:
            self.runs += 1
            if self.failures:
                self.failures -= 1
                raise OSError("the switch does not answer")
            if request.object is None:
                self.made.pop(request.key, None)
            else:
                self.made[request.key] = request.object.value
        return self._result


def test_what_is_written_is_done_when_the_system_has_settled(heliograph_system: MemorySystem) -> None:
    world, writer = World(), heliograph_system.writer()
    heliograph_system.controller(heliograph_system.cache(tables=["port"]), world.reconcile)
    for number in range(20):
        writer.put("port", f"p{number}", number, topic="t")
    writer.delete("port", "p0")
    heliograph_system.settle()
    assert world.made == {f"p{number}": number for number in range(1, 20)}


def test_what_controllers_write_is_waited_for(heliograph_system: MemorySystem) -> None:
    """A chain of three: each writes what the next one works on."""
    writer, world = heliograph_system.writer(), World()

    def copy_to(table: str) -> object:
        def reconcile(request: Request) -> None:
            if request.object is not None:
                writer.put(table, request.key, request.object.value, topic="t")

        return reconcile

    heliograph_system.controller(heliograph_system.cache(tables=["a"]), copy_to("b"))  # type: ignore[arg-type]
    heliograph_system.controller(heliograph_system.cache(tables=["b"]), copy_to("c"))  # type: ignore[arg-type]
    heliograph_system.controller(heliograph_system.cache(tables=["c"]), world.reconcile)
    writer.put("a", "1", "passed on", topic="t")
    heliograph_system.settle()
    assert world.made == {"1": "passed on"}


def test_time_stands_still_until_it_is_moved(heliograph_system: MemorySystem, heliograph_time: VirtualTime) -> None:
    world, writer = World(), heliograph_system.writer()
    world.failures = 3
    heliograph_system.controller(heliograph_system.cache(tables=["port"]), world.reconcile, workers=1)
    writer.put("port", "p1", 1, topic="t")
    heliograph_system.settle()
    assert (world.runs, world.made) == (1, {})
    heliograph_time.advance(HOUR_S)
    assert (world.runs, world.made) == (4, {"p1": 1})
    assert heliograph_time.now() == HOUR_S


def test_time_moves_from_one_due_run_to_the_next(heliograph_system: MemorySystem) -> None:
    world, writer = World(RequeueAfter(60.0)), heliograph_system.writer()
    heliograph_system.controller(heliograph_system.cache(tables=["port"]), world.reconcile)
    writer.put("port", "p1", 1, topic="t")
    heliograph_system.settle()
    assert world.runs == 1
    heliograph_system.advance(HOUR_S)
    assert world.runs == 61
    with pytest.raises(UsageError):
        heliograph_system.time.advance(-1.0)


def test_a_run_that_never_ends_is_told(heliograph_system: MemorySystem) -> None:
    go_on = threading.Event()
    writer = heliograph_system.writer()
    heliograph_system.controller(heliograph_system.cache(tables=["port"]), lambda _: go_on.wait(60) and None)
    writer.put("port", "p1", 1, topic="t")
    with pytest.raises(WaitTimeout):
        heliograph_system.settle(timeout_s=2.0)
    go_on.set()
    heliograph_system.settle()


@pytest.mark.parametrize("fault", ["lose", "delay", "cut", "silent cut", "restart"])
def test_a_controller_survives_each_fault(
    fault: str, heliograph_system: MemorySystem, heliograph_bus: MemoryBus
) -> None:
    world, writer = World(), heliograph_system.writer()
    heliograph_system.controller(heliograph_system.cache(tables=["port"]), world.reconcile)
    writer.put("port", "before", 0, topic="t")
    heliograph_system.settle()
    if fault == "lose":
        heliograph_bus.lose(0.5)
    elif fault == "delay":
        heliograph_bus.delay(0.05)
    elif fault in ("cut", "silent cut"):
        heliograph_bus.cut(silently=fault == "silent cut")
    for number in range(20):
        writer.put("port", f"p{number}", number, topic="t")
    if fault == "restart":
        writer = heliograph_system.restart(writer)
        writer.put("port", "before", 1, topic="t")
    heliograph_bus.heal()
    heliograph_system.settle()
    assert world.made == {"before": int(fault == "restart"), **{f"p{number}": number for number in range(20)}}


def test_without_a_bus_copies_follow_the_database(tmp_path: pathlib.Path) -> None:
    world = World()
    with MemorySystem(tmp_path) as system:
        system.controller(system.cache(), world.reconcile)
        system.writer().put("port", "p1", 1, topic="t")
        system.settle()
    assert world.made == {"p1": 1}


def test_a_bus_alone(heliograph_bus: MemoryBus) -> None:
    heard: list[object] = []
    arrived = threading.Event()

    def note(event: Event) -> None:
        heard.append(event.value)
        arrived.set()

    session = heliograph_bus.session()
    with session.subscriber(["t"], note) as subscriber:
        publisher = session.publisher()
        subscriber.wait_ready(timeout_s=60)
        publisher.send_event(Event(topic="t", table="port", key="p", action="set", value=7))
        assert arrived.wait(60)
    assert heard == [7]


def test_the_page_is_a_test_file_that_pytest_runs(tmp_path: pathlib.Path) -> None:
    """In a process of its own, which loads the plug-in as any program's tests do."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    (tmp_path / "test_page.py").write_text(block)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


def test_idle_counts_what_the_copy_has(heliograph_system: MemorySystem) -> None:
    """A program that has waited for its own write need not ask again whether the controller has heard of it."""
    world, writer = World(), heliograph_system.writer()
    cache = heliograph_system.cache(tables=["port"])
    controller = heliograph_system.controller(cache, world.reconcile)
    for number in range(50):
        version = writer.put("port", "p1", number, topic="t")
        cache.wait_version("port", "p1", version, timeout_s=60)
        controller.wait_idle(timeout_s=60)
        assert world.made == {"p1": number}
