"""What a controller tells of objects that are gone, and when: a program destroys or hands over because of it."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from nb_api import Controller, Deleted, LocalCache, NbApi, Request, RetryPauses
from nb_api.core.copy.differences import CachedObject
from nb_api.errors import GiveUp
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.waiting import WAIT_S, wait_until


class LateCache(ScriptedCache):
    """Changes the copy first and tells of it when somebody waits for who changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Deleted] = []

    def move_away(self, table: str, key: str) -> None:
        entry: CachedObject = self.objects[table, key]
        self.delete(table, key, is_told=False)
        self.late.append(Deleted(table, key, entry, self._version, "moved"))

    @property
    def topics(self) -> list[str]:
        while self.late:
            self.tell(self.late.pop())
        return ["#"]


def test_a_delete_that_comes_while_a_run_gives_up_stays_known() -> None:
    cache: Any = ScriptedCache()
    cache.put("port", "p1")
    running, go_on = threading.Event(), threading.Event()
    ends: list[Any] = []

    def reconcile(request: Request) -> None:
        if request.table == "other":
            return
        if request.object is None:
            ends.append((request.deleted is not None, request.ending))
            return
        running.set()
        go_on.wait(WAIT_S)
        raise GiveUp("not before it changes")

    with Controller(cache, reconcile, interval_min_s=0.0) as controller:
        assert running.wait(WAIT_S)
        cache.delete("port", "p1")
        cache.put("other", "after")
        wait_until(lambda: controller.statistics().runs == 2, what="both changes to be taken")
        go_on.set()
        wait_until(lambda: ends)
        controller.wait_idle(timeout_s=WAIT_S)
    assert ends == [(True, "deleted")]


def test_who_gives_up_on_a_delete_is_not_told_of_it_again() -> None:
    cache: Any = ScriptedCache()
    cache.put("port", "p1")
    ends: list[Any] = []

    def reconcile(request: Request) -> None:
        if request.object is None:
            ends.append(request.ending)
            raise GiveUp("nothing can be done")

    with Controller(cache, reconcile, interval_min_s=0.0) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        cache.delete("port", "p1")
        wait_until(lambda: controller.statistics().given_up == 1)
        controller.enqueue("port", "p1")
        wait_until(lambda: len(ends) == 2)
    assert ends == ["deleted", None]


def test_what_moved_away_is_never_told_as_gone_for_no_known_reason() -> None:
    cache: Any = LateCache()
    cache.put("port", "p1")
    ends: list[Any] = []

    def reconcile(request: Request) -> None:
        if request.object is None:
            ends.append(request.ending)

    with Controller(cache, reconcile, interval_min_s=0.0, workers=1) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        cache.move_away("port", "p1")
        controller.enqueue("port", "p1")
        wait_until(lambda: ends)
        controller.wait_idle(timeout_s=WAIT_S)
        statistics = controller.statistics()
    assert ends == ["moved"]
    assert statistics.runs == 2  # what had not begun does not count


def test_the_end_of_a_former_object_is_not_that_of_the_present_one() -> None:
    cache: Any = LateCache()
    cache.put("port", "p1", 1)
    seen: list[Any] = []

    def reconcile(request: Request) -> None:
        seen.append(request.object.value if request.object else request.ending)
        if request.ending == "deleted":
            raise ValueError("not now")

    with Controller(cache, reconcile, interval_min_s=0.0, retries=RetryPauses(3600.0, 3600.0)) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        cache.delete("port", "p1")
        wait_until(lambda: controller.statistics().failures == 1)
        cache.put("port", "p1", 2, is_told=False)
        controller.enqueue("port", "p1")
        wait_until(lambda: seen[-1] == 2)
        controller.wait_idle(timeout_s=WAIT_S)
        cache.move_away("port", "p1")
        controller.enqueue("port", "p1")
        wait_until(lambda: seen[-1] == "moved")
    assert seen[:4] == [1, "deleted", 2, "moved"]


def test_a_key_of_which_nothing_was_ever_known_runs_without_an_end() -> None:
    cache: Any = ScriptedCache()
    seen: list[Any] = []
    with Controller(cache, lambda request: seen.append((request.key, request.object, request.ending))) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        controller.enqueue("port", "never")
        wait_until(lambda: seen)
        controller.wait_idle(timeout_s=WAIT_S)
    assert seen == [("never", None, None)]


def test_objects_that_move_while_their_keys_run_all_the_time(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = defaultdict(list)

    def reconcile(request: Request) -> None:
        seen[request.key].append("there" if request.object else request.ending)

    keys = [f"p{number}" for number in range(30)]
    with NbApi.open(f"sqlite://{tmp_path}/objects.db") as nb:
        for key in keys:
            nb.create("port", key, {}, topic="here")
        with (
            LocalCache(nb, tables=["port"], topics=["here"]) as cache,
            Controller(cache, reconcile, interval_min_s=0.0) as controller,
        ):
            controller.wait_idle(timeout_s=WAIT_S)
            for key in keys:
                nb.update("port", key, {}, topic="elsewhere")
                wait_until(lambda key=key: controller.enqueue("port", key) or "moved" in seen[key])  # type: ignore[misc]
    for key in keys:
        assert next(end for end in seen[key] if end != "there") == "moved"
