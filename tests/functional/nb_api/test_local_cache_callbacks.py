"""What a local cache tells through its callback: all that is ready at once, and again when the callback raised."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import Iterator, Sequence

import pytest

from nb_api import CacheChange, Created, Updated
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.nb_worlds import WAIT_S, Told, World
from tests.helpers.waiting import wait_until


@pytest.fixture(params=["feed", "bus"])
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    bus = memory_bus() if request.param == "bus" else None
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    yield world
    world.close()


class Unwilling(Told):
    """Raises at the second change of a call, until it is told to stop."""

    def __init__(self, raised: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.raised = raised
        self.calls = 0
        self.raises = True

    def __call__(self, changes: Sequence[CacheChange]) -> None:
        self.calls += 1
        if self.raises:
            self.changes.append(changes[0])
            raise self.raised("not now")
        super().__call__(changes)


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_callback_that_raises_is_told_again(world: World, raised: type[BaseException]) -> None:
    told = Unwilling(raised)
    cache = world.cache(is_awaited=False, tables=["port"], on_changes=told)
    with world.nb.transaction() as txn:
        for number in range(3):
            txn.create("port", f"p{number}", number, topic="t")
    world.nb.update("port", "p1", "new")
    world.wait_equal(cache)
    wait_until(lambda: told.calls >= 3, WAIT_S, "the callback to be called again")
    assert cache.statistics().telling.callback_errors > 0
    wait_until(lambda: cache.statistics().telling.untold > 0, WAIT_S, "what it did not take to wait")
    told.changes.clear()
    told.raises = False
    world.nb.create("port", "last", 0, topic="t")
    wait_until(lambda: "Created last" in told.kinds(), WAIT_S, "the last change")
    kept: dict[str, object] = {}
    for change in told.changes:
        if isinstance(change, (Created, Updated)):
            kept[change.object.key] = change.object.value
    assert kept == {found.key: found.value for found in cache.get_all("port")}
    wait_until(lambda: cache.statistics().telling.untold == 0, WAIT_S, "nothing to wait")


def test_a_callback_that_raises_for_long_is_told_to_read_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is bounded."""
    monkeypatch.setattr("nb_api.notify_config.CHANGES_QUEUE_MAX", 1)
    told = Unwilling()
    cache = world.cache(is_awaited=False, on_changes=told)
    for number in range(3):
        with world.nb.transaction() as txn:
            for i in range(400):
                txn.create("port", f"{number}-{i}", i, topic="t")
    world.wait_equal(cache)
    wait_until(lambda: cache.statistics().telling.overruns > 0, WAIT_S, "the overrun")
    assert cache.statistics().telling.untold <= 1
    told.changes = []  # in which there is what it was told and did not take
    told.raises = False
    wait_until(lambda: cache.statistics().telling.untold == 0, WAIT_S, "the callback to take it")
    wait_until(lambda: any(not one.is_told for one in told.resyncs()), WAIT_S, "the overrun to be told")
    world.nb.create("port", "after", 0, topic="t")
    wait_until(lambda: "Created after" in told.kinds(), WAIT_S, "what came after")


def test_a_callback_gets_all_that_waits_at_once(tmp_path: pathlib.Path) -> None:
    """Frames that came while it was busy are one call, and not one call each."""
    begun, go_on = threading.Event(), threading.Event()
    sizes: list[int] = []

    def note(changes: Sequence[CacheChange]) -> None:
        created = sum(isinstance(change, Created) for change in changes)
        if created:
            sizes.append(created)
            begun.set()
            assert go_on.wait(WAIT_S)

    bus = memory_bus()
    world = World(bus, sqlite_url(tmp_path), open_nb(sqlite_url(tmp_path), bus))
    cache = world.cache(on_changes=note)
    for number in range(60):
        world.nb.create("port", f"p{number}", number, topic="t")
        if not number:
            assert begun.wait(WAIT_S)
        world.nb.flush(timeout_s=WAIT_S)  # a frame of its own
    wait_until(lambda: cache.statistics().bus.queue_bytes > 0, WAIT_S, "frames to wait")  # type: ignore[union-attr]
    go_on.set()
    world.wait_equal(cache)
    wait_until(lambda: sum(sizes) == 60, WAIT_S, "all to be told")
    assert len(sizes) < 10
    world.close()
