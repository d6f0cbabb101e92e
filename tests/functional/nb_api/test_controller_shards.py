"""Controllers that share keys: each works on those of its shards, and no two on one key."""

from __future__ import annotations

import asyncio
import math
import os
import pathlib
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from nb_api import Controller, DbObject, NbApi, Request
from nb_api import aio as nb_aio
from nb_api.controller.core import ends
from nb_api.coordination.election import Election
from nb_api.coordination.key_shards import COUNT_MAX, TABLE, KeyShards
from nb_api.core.key_shards import ShardRun, shard_of
from pubsub_api.errors import Forked, UsageError
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.servers import RedisServer
from tests.helpers.shard_child import SHARDS, RunNote, run_notes, worker_process
from tests.helpers.waiting import WAIT_S, wait_until

COUNT = 4
LEASE_S = 1.0


class Scripted:
    """As much of `KeyShards` as a controller asks."""

    def __init__(self, **tokens: int) -> None:
        self.moves = 0
        self.lasts = True
        self.was_held = True
        self.set(**tokens)

    def set(self, **tokens: int) -> None:
        self._tokens = {int(name.removeprefix("s")): token for name, token in tokens.items()}
        self.moves += 1

    def tokens(self) -> dict[int, int]:
        return dict(self._tokens)

    def shard_of(self, table: str, key: str) -> int:
        return shard_of(table, key, COUNT)

    def is_lasting(self) -> bool:
        return self.lasts

    def is_foreign(self, table: str, key: str) -> bool:
        return self.shard_of(table, key) not in self._tokens

    def begin_run(self, table: str, key: str) -> ShardRun | None:
        token = self._tokens.get(self.shard_of(table, key))
        return None if token is None or not self.lasts else ShardRun(self.shard_of(table, key), token, 0)

    def is_held(self, run: ShardRun) -> bool:
        return self.lasts and self._tokens.get(run.shard) == run.token

    def is_ending(self, run: ShardRun) -> bool:
        return not self.is_held(run)

    def end_run(self, run: ShardRun) -> bool:
        return self.is_held(run) and self.was_held


def records(nb: NbApi) -> list[DbObject]:
    """All claims and signs of life."""
    with nb.db.snapshot([TABLE]) as found:
        return list(found)


def ports(count: int) -> Any:
    cache = ScriptedCache()
    for number in range(count):
        cache.put("port", f"p{number}")
    return cache


def keys_of(shard: int, count: int) -> set[str]:
    return {key for key in (f"p{number}" for number in range(count)) if shard_of("port", key, COUNT) == shard}


def test_only_keys_of_held_shards_run_and_all_of_a_shard_once_when_it_comes() -> None:
    scripted, runs = Scripted(s0=5), Counter[tuple[str, int | None]]()
    shards: Any = scripted

    def reconcile(request: Request) -> None:
        assert request.is_held
        runs[request.key, request.token] += 1

    with Controller(ports(40), reconcile, shards=shards, interval_min_s=0.0) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert runs == {(key, 5): 1 for key in keys_of(0, 40)}
        stranger = min(keys_of(1, 40))
        assert not controller.enqueue("port", stranger)
        assert not controller.enqueue("port", stranger, after_s=0.01)
        assert controller.enqueue("port", min(keys_of(0, 40)), after_s=3600)
        scripted.set(s1=7)
        controller.wait_idle(timeout_s=WAIT_S)
        assert {key for key, token in runs if token == 7} == keys_of(1, 40)
        assert controller.statistics().waiting == 0  # what was wanted of a shard that went is another's business
        scripted.set(s0=9, s1=7)
        controller.wait_idle(timeout_s=WAIT_S)
    assert all(count == 1 for count in runs.values())
    assert {key for key, token in runs if token == 9} == keys_of(0, 40)


def test_owners_are_shared_by_their_own_shard() -> None:
    scripted, runs = Scripted(s0=5), Counter[str]()
    shards: Any = scripted
    cache = ScriptedCache()
    for number in range(20):
        cache.put("binding", f"b{number}", f"p{number}")
    owned: Any = cache

    def reconcile(request: Request) -> None:
        runs[request.key] += 1

    owners: Any = {"binding": lambda binding: [("port", binding.value)]}
    with Controller(owned, reconcile, shards=shards, owners=owners) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        assert set(runs) == keys_of(0, 20)
        scripted.set(s0=5, s2=6)
        controller.wait_idle(timeout_s=WAIT_S)
    assert set(runs) == keys_of(0, 20) | keys_of(2, 20)


def test_nothing_begins_while_the_lease_is_over_and_nothing_is_forgotten() -> None:
    scripted, runs = Scripted(s0=5, s1=6, s2=7, s3=8), Counter[str]()
    shards: Any = scripted
    cache = ports(10)

    def reconcile(request: Request) -> None:
        runs[request.key] += 1

    with Controller(cache, reconcile, shards=shards, interval_min_s=0.0) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        scripted.lasts = False
        cache.put("port", "p3", "changed")
        wait_until(lambda: controller.statistics().ready == 1, what="the change")
        assert not controller.statistics().is_active
        assert runs["p3"] == 1
        scripted.lasts = True
        controller.wait_idle(timeout_s=WAIT_S)
    assert runs == {f"p{number}": 1 + (number == 3) for number in range(10)}


def test_a_run_during_which_the_lease_was_over_is_told_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    scripted, told = Scripted(s0=5, s1=6, s2=7, s3=8), list[tuple[bool, bool]]()
    shards: Any = scripted
    begun, go_on = threading.Event(), threading.Event()

    def reconcile(request: Request) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        told.append((request.is_held, request.is_stopping))

    with Controller(ports(1), reconcile, shards=shards) as controller:
        assert begun.wait(WAIT_S)
        scripted.lasts = False
        go_on.set()
        wait_until(lambda: controller.statistics().running == 0, what="the run to end")
        assert controller.statistics().unheld_runs == 1
    assert told == [(False, True)]
    assert "the lease of this process was over while reconcile of port 'p0' ran, with token" in caplog.text


def test_what_was_deleted_elsewhere_is_known_to_who_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "ELSEWHERE_MAX", 3)
    scripted, deleted = Scripted(), dict[str, str | None]()
    shards: Any = scripted
    cache = ports(5)

    def reconcile(request: Request) -> None:
        deleted[request.key] = request.ending

    with Controller(cache, reconcile, shards=shards) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        for number in range(5):
            cache.delete("port", f"p{number}")
        wait_until(lambda: controller.statistics().following.ends_forgotten == 2, what="the deletes")
        cache.put("port", "p4")
        controller.wait_idle(timeout_s=WAIT_S)
        scripted.set(s0=5, s1=6, s2=7, s3=8)
        wait_until(lambda: len(deleted) == 3, what="the runs")
        controller.wait_idle(timeout_s=WAIT_S)
    assert deleted == {"p2": "deleted", "p3": "deleted", "p4": None}


def test_two_hand_over_when_a_run_has_ended(tmp_path: pathlib.Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    held: list[tuple[bool, bool]] = []
    runs = Counter[str]()

    def first_reconcile(request: Request) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        held.append((request.is_held, request.is_stopping))

    def second_reconcile(request: Request) -> None:
        assert go_on.is_set()
        assert request.is_held
        runs[request.key] += 1

    with (
        open_nb(sqlite_url(tmp_path)) as nb,
        KeyShards(nb.db, "flows", count=1, holder="a", lease_s=5.0) as first,
        Controller(ports(1), first_reconcile, shards=first) as controller,
    ):
        assert begun.wait(WAIT_S)
        with (
            KeyShards(nb.db, "flows", count=1, holder="b", lease_s=5.0) as second,
            Controller(ports(1), second_reconcile, shards=second),
        ):
            wait_until(lambda: second.statistics().members == 2, what="the second to look")
            first.close(timeout_s=0.0)
            wait_until(lambda: second.statistics().share == 1, what="the second to want the shard")
            assert first.statistics().held == 1
            assert second.tokens() == {}
            go_on.set()
            wait_until(lambda: runs["p0"] == 1, what="the second to work")
            assert held == [(True, True)]
            assert (first.statistics().releases, first.statistics().losses) == (1, 0)
            assert controller.statistics().unheld_runs == 0


def test_a_controller_that_ends_by_itself_gives_its_shards_up(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reconcile(_request: Request) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    with (
        open_nb(sqlite_url(tmp_path)) as nb,
        KeyShards(nb.db, "flows", count=2, holder="a", lease_s=3600.0) as shards,  # which does not end by itself
        Controller(cache := ports(1), reconcile, shards=shards) as controller,
    ):
        try:
            assert begun.wait(WAIT_S)
            wait_until(lambda: shards.statistics().held == 2, what="both shards")
            cache.is_closed = True
            wait_until(lambda: controller.is_closed, what="the controller to end")
            wait_until(lambda: shards.statistics().held == 1, what="the shard without a run to be given up")
        finally:
            go_on.set()
        wait_until(lambda: shards.statistics().held == 0, what="that of the run to be given up")
        wait_until(lambda: not records(nb), what="nothing to be left for the others to wait for")
    assert "ends by itself, and gives up its shards" in caplog.text


def test_a_controller_whose_run_notices_first_that_the_cache_was_closed_gives_its_shards_up(
    tmp_path: pathlib.Path,
) -> None:
    begun = threading.Event()
    cache = ports(1)

    def reconcile(request: Request) -> None:
        begun.set()
        wait_until(lambda: cache.is_closed, what="the cache to be closed")
        request.cache.get("port", "p0")

    with (
        open_nb(sqlite_url(tmp_path)) as nb,
        KeyShards(nb.db, "flows", count=2, holder="a", lease_s=3600.0) as shards,
        Controller(cache, reconcile, shards=shards) as controller,
    ):
        assert begun.wait(WAIT_S)
        cache.is_closed = True
        wait_until(lambda: controller.is_closed, what="the controller to end")
        wait_until(lambda: not records(nb), what="nothing to be left for the others to wait for")


def test_a_controller_whose_loop_has_ended_gives_its_shards_up(tmp_path: pathlib.Path) -> None:
    cache = ports(1)

    async def reconcile(_request: nb_aio.Request) -> None: ...

    async def forget(shards: nb_aio.KeyShards) -> nb_aio.Controller:
        controller = nb_aio.Controller(cache, reconcile, shards=shards)
        await controller.wait_idle(timeout_s=WAIT_S)
        return controller

    with open_nb(sqlite_url(tmp_path)) as nb:
        shards = nb_aio.KeyShards(nb_aio.NbApi(nb), "flows", count=1, holder="a", lease_s=3600.0)
        with shards.blocking:
            controller = asyncio.run(forget(shards))
            wait_until(lambda: shards.blocking.statistics().held == 1, what="the shard")
            cache.put("port", "p0", 1)
            wait_until(lambda: controller.is_closed, what="the controller to end")
            wait_until(lambda: not records(nb), what="nothing to be left for the others to wait for")


def test_a_controller_that_is_closed_leaves_its_shards_to_the_program(tmp_path: pathlib.Path) -> None:
    with (
        open_nb(sqlite_url(tmp_path)) as nb,
        KeyShards(nb.db, "flows", count=1, holder="a") as shards,
    ):
        with Controller(ports(1), lambda _request: None, shards=shards) as controller:
            wait_until(lambda: controller.statistics().runs == 1, what="the run")
        assert shards.tokens()


def test_coroutines_share_keys(tmp_path: pathlib.Path) -> None:
    runs = Counter[tuple[str, str]]()

    async def work(holder: str, is_done: asyncio.Event) -> None:
        async def reconcile(request: nb_aio.Request) -> None:
            assert request.is_held
            runs[holder, request.key] += 1
            if len({key for _, key in runs}) == 20:
                is_done.set()

        async with (
            nb_aio.NbApi.open(sqlite_url(tmp_path)) as nb,
            nb_aio.LocalCache(nb, tables=["port"]) as cache,
            nb_aio.KeyShards(nb, "flows", count=8, holder=holder, lease_s=20.0) as shards,
            nb_aio.Controller(cache, reconcile, shards=shards),
        ):
            await asyncio.wait_for(is_done.wait(), WAIT_S)
            assert shards.statistics().losses == 0

    async def main() -> None:
        is_done = asyncio.Event()
        await asyncio.gather(work("a", is_done), work("b", is_done))

    with open_nb(sqlite_url(tmp_path)) as nb:
        for number in range(20):
            nb.create("port", f"p{number}", number, topic="t")
    asyncio.run(main())


def test_what_makes_no_sense_is_refused(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path)) as nb:
        counts: list[Any] = [0, COUNT_MAX + 1, 1.5, "8"]
        for count in counts:
            with pytest.raises(UsageError, match="1 to 1024"):
                KeyShards(nb.db, "flows", count=count, holder="a")
        for lease_s in (0, 3601, math.inf, math.nan):
            with pytest.raises(UsageError, match="takes time"):
                KeyShards(nb.db, "flows", count=1, holder="a", lease_s=lease_s)
        with pytest.raises(UsageError, match="200 characters"):
            KeyShards(nb.db, "f" * 201, count=1, holder="a")
        both: Any = {"election": Election(nb.db, "x", holder="a"), "shards": KeyShards(nb.db, "x", count=1, holder="a")}
        with pytest.raises(UsageError, match="not both"):
            Controller(ports(1), lambda _request: None, **both)


def test_a_forked_child_holds_nothing(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path)) as nb, KeyShards(nb.db, "flows", count=1, holder="a") as shards:
        wait_until(shards.tokens, what="the shard")
        child = os.fork()
        if not child:
            status = 1
            try:
                assert shards.tokens() == {}
                assert shards.token("port", "p1") is None
                assert "inherited" in repr(shards)
                with pytest.raises(Forked):
                    shards.start()
                shards.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert shards.token("port", "p1") is not None


# -- real processes


def statistics(children: dict[str, ChildProcess]) -> dict[str, dict[str, int]]:
    return {name: child.ask(ask="statistics") for name, child in children.items()}


def check_notes(notes: list[RunNote]) -> None:
    """No process begins with an old token, and none while another works in the shard and holds it to the end."""
    newest: dict[int, int] = {}
    for place, note in enumerate(notes):
        if note.what != "begin":
            continue
        assert note.token >= newest.get(note.shard, 0), f"{note} came after token {newest[note.shard]}"
        newest[note.shard] = note.token
        for other in notes[:place]:
            if other.what == "begin" and other.shard == note.shard and other.pid != note.pid:
                is_end = lambda one, other=other: one[1:6] == other[1:6] and one.what == "end"  # noqa: E731
                later = next((one for one in notes[place:] if is_end(one)), None)
                is_over = any(is_end(one) for one in notes[:place])
                assert is_over or later is None or not later.is_held, f"{other} went on when {note} began"


def test_killed_and_frozen_processes_are_replaced_and_no_two_work_on_one_key(tmp_path: pathlib.Path) -> None:
    keys = [f"p{number}" for number in range(24)]
    # Not in SQLite: who is frozen while it writes would keep the others from writing.
    with RedisServer() as server, open_nb(server.address) as nb, ExitStack() as stack:
        for key in keys:
            nb.create("port", key, 0, topic="t")
        children = {
            name: stack.enter_context(worker_process(server.address, tmp_path, LEASE_S))
            for name in ("killed", "frozen", "third")
        }

        def are_shared() -> dict[str, dict[str, int]] | None:
            told = statistics(children)
            held = [one["held"] for one in told.values()]
            return told if sum(held) == SHARDS and min(held) >= SHARDS // len(children) else None

        def have_run(value: int) -> bool:
            return {note.key for note in run_notes(tmp_path) if note.what == "begin" and note.value == value} == set(
                keys
            )

        frozen = wait_until(are_shared, what="all to have their share")["frozen"]["pid"]
        (tmp_path / f"gate-{frozen}").touch()
        for key in keys:
            nb.update("port", key, 1)
        wait_until((tmp_path / f"blocked-{frozen}").exists, what="a run to be going on")
        children["frozen"].stop()
        children.pop("killed").kill()
        third = {"third": children["third"]}
        wait_until(lambda: statistics(third)["third"]["held"] == SHARDS, what="the third to have all")
        for key in keys:
            nb.update("port", key, 2)
        wait_until(lambda: have_run(2), what="the third to work on all")
        (tmp_path / f"gate-{frozen}").unlink()
        children["frozen"].resume()
        back = wait_until(are_shared, what="both to have their share")["frozen"]
        wait_until(lambda: statistics(children)["frozen"]["unheld"] >= 1, what="the run to end")
        assert back["lapses"] >= 1
        check_notes(notes := run_notes(tmp_path))
        assert [note for note in notes if note.pid == frozen and note.what == "end" and not note.is_held]
