"""Functions that tell owners and fail, in any way: counted, called again, and never the silent end of a controller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nb_api import Controller, LocalCache, NbApi, Request
from nb_api.controller import following
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from tests.helpers.scripted_cache import ScriptedCache
from tests.helpers.waiting import WAIT_S, wait_until


class WithoutText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.fixture
def nb(tmp_path: Path) -> Iterator[NbApi]:
    with NbApi.open(f"sqlite://{tmp_path}/objects.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_RETRY_S", 0.01)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), WithoutText()])
def test_owners_that_raise_anything_are_counted_and_called_again(error: BaseException) -> None:
    cache: Any = ScriptedCache()
    cache.put("port", "p1", 0)
    seen: list[Any] = []
    is_well = threading.Event()

    def owners(_: Any) -> list[tuple[str, str]]:
        if not is_well.is_set():
            raise error
        return [("port", "p2")]

    def reconcile(request: Request) -> None:
        seen.append((request.key, request.object.value if request.object else None))

    with Controller(cache, reconcile, owners={"binding": owners}, interval_min_s=0.0) as controller:
        controller.wait_idle(timeout_s=WAIT_S)
        cache.put("binding", "b1")
        wait_until(lambda: controller.statistics().following.mapping_errors)
        cache.put("port", "p1", 1)
        wait_until(lambda: ("p1", 1) in seen)
        with pytest.raises(WaitTimeout, match="unmapped=1"):
            controller.wait_idle(timeout_s=0.01)
        is_well.set()
        controller.wait_idle(timeout_s=WAIT_S)
        assert ("p2", None) in seen
        assert controller.statistics().following.unmapped == 0


def test_an_object_that_is_gone_is_not_unmapped_for_ever() -> None:
    cache: Any = ScriptedCache()
    for key in ("told", "untold"):
        cache.put("binding", key)
    with Controller(cache, lambda _: None, owners={"binding": lambda _: 1 // 0}) as controller:  # type: ignore[arg-type,return-value]
        wait_until(lambda: controller.statistics().following.unmapped == 2)
        cache.delete("binding", "told")
        cache.delete("binding", "untold", is_told=False)
        controller.wait_idle(timeout_s=WAIT_S)
        assert controller.statistics().following.unmapped == 0


def test_a_controller_that_cannot_follow_says_that_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenCache(ScriptedCache):
        def subscribe(self, *, tables: Any) -> Any:
            raise MemoryError("no room")

    cache: Any = BrokenCache()
    with Controller(cache, lambda _: None, name="lost") as controller:
        wait_until(lambda: controller.is_closed)
        with pytest.raises(Closed):
            controller.wait_idle(timeout_s=WAIT_S)
        assert "closed" in repr(controller)
    assert "Controller lost ends, because it cannot follow changes" in caplog.text


def test_none_is_no_list_of_owners(caplog: pytest.LogCaptureFixture) -> None:
    cache: Any = ScriptedCache()
    cache.put("binding", "b1")
    with Controller(cache, lambda _: None, owners={"binding": lambda _: None}) as controller:  # type: ignore[arg-type,return-value]
        wait_until(lambda: controller.statistics().following.unmapped == 1)
        wait_until(lambda: "returned None: give a list" in caplog.text)


def test_an_owner_of_a_table_that_is_not_followed_is_not_told_as_deleted(caplog: pytest.LogCaptureFixture) -> None:
    cache: Any = ScriptedCache(followed=["binding"])
    cache.put("binding", "b1")
    seen: list[Request] = []
    with Controller(cache, seen.append, owners={"binding": lambda _: [("port", "p1")]}) as controller:
        wait_until(lambda: controller.statistics().following.unmapped == 1)
        wait_until(lambda: "port 'p1' is of a table that the local cache does not follow" in caplog.text)
        assert seen == []


def test_tables_that_are_not_followed_are_refused(nb: NbApi) -> None:
    with LocalCache(nb, tables=["port"]) as cache:
        wrong: list[dict[str, Any]] = [{"tables": ["prot"]}, {"owners": {"binding": lambda _: []}}]
        for arguments in wrong:
            with pytest.raises(UsageError, match="not followed"):
                Controller(cache, lambda _: None, **arguments)
        Controller(cache, lambda _: None, tables=["port"]).close()
    with LocalCache(nb) as cache:
        Controller(cache, lambda _: None, tables=["any"]).close()


def test_a_cache_that_is_closed_or_inherited_is_refused(nb: NbApi) -> None:
    with LocalCache(nb) as cache:
        made = lambda: Controller(cache, lambda _: None)  # noqa: E731
        assert in_forked_child(lambda: outcome(made)) == Forked.__name__
    with pytest.raises(Closed):
        made()
