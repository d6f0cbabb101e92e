"""kill -9 at random moments: of a writer between commit and publication, of controllers.  Nothing is lost.

`tests/chaos/test_nb_kills_long.py` does the same far more often, and to database servers as well.
"""

from __future__ import annotations

import pathlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from nb_api import LocalCache, NbApi
from pubsub_api import Event
from tests.helpers.nb_nodes import TABLES, ControllerNode, MortalWriters, WriterNode, rows_of
from tests.helpers.nb_tools import PATIENT_DB, open_nb, sqlite_url
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

WAIT_S = 60.0
KILLS = 3
MORTALS = 6


@pytest.fixture
def bus(redis_server: RedisServer) -> str:
    return f"{redis_server.new_prefix()}".replace("prefix=", "channel_prefix=") + ":"


@pytest.fixture
def nb(tmp_path: pathlib.Path, bus: str) -> Iterator[NbApi]:
    """A writer that survives, and sweeps."""
    with open_nb(sqlite_url(tmp_path), bus) as nb:
        nb.create("port", "first", None, topic="t")
        yield nb


def kill_in_mid_flow(nb: NbApi, writer: WriterNode, chance: random.Random) -> None:
    """Let it write a little, and kill it whatever it is doing."""
    goal = nb.db.revision() + chance.randrange(1, 60)
    writer.start_flood()
    wait_until(lambda: nb.db.revision() >= goal, WAIT_S, "some writes")
    writer.kill()


def test_a_writer_killed_between_commit_and_publication_loses_nothing(
    nb: NbApi, bus: str, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(11)
    published: Counter[int] = Counter()

    def on_event(event: Event) -> None:
        if event.action != "delete" or event.value is None:  # not the second half of a move
            published[event.version] += 1

    assert nb.session is not None
    with nb.session.subscriber(["#"], on_event) as listener, LocalCache(nb) as cache:
        listener.wait_ready(timeout_s=WAIT_S)
        cache.wait_synced(timeout_s=WAIT_S)
        first = nb.db.revision()
        for seed in range(KILLS):
            with WriterNode(sqlite_url(tmp_path), bus, seed=seed) as writer:
                kill_in_mid_flow(nb, writer, chance)
            wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be swept")
            wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")
        expected = {change.revision for change in nb.db.changes(first, limit=100_000)}
        own = {
            change.revision for change in nb.db.changes(first, limit=100_000) if change.table.startswith("heliograph")
        }
        wait_until(lambda: set(published) >= expected - own, WAIT_S, "every change to be told")


def test_writers_killed_between_commit_and_direct_publication_lose_nothing(
    nb: NbApi, bus: str, tmp_path: pathlib.Path
) -> None:
    told: set[int] = set()
    assert nb.session is not None
    with (
        nb.session.subscriber(["#"], lambda event: told.add(event.version)) as listener,
        LocalCache(nb, tables=TABLES) as cache,
        MortalWriters(sqlite_url(tmp_path), bus, seed=2) as writers,
    ):
        listener.wait_ready(timeout_s=WAIT_S)
        cache.wait_synced(timeout_s=WAIT_S)
        first = nb.db.revision()
        for _ in range(MORTALS):
            writers.die()
        wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "the outbox to be swept")
        changes = [change for change in nb.db.changes(first, limit=100_000) if change.table in TABLES]
        wait_until(lambda: told >= {change.revision for change in changes}, WAIT_S, "every change to be told")
        wait_until(lambda: rows_of(cache) == rows_of(nb), WAIT_S, "the cache to equal the database")
        assert nb.statistics().sweeper.swept >= MORTALS  # each has left at least one


def test_without_a_kill_nothing_is_published_twice(bus: str, tmp_path: pathlib.Path) -> None:
    published: Counter[tuple[int, str]] = Counter()
    with open_nb(sqlite_url(tmp_path), bus, db=PATIENT_DB) as nb:
        assert nb.session is not None
        listener = nb.session.subscriber(["#"], lambda event: published.update([(event.version, event.topic)]))
        listener.wait_ready(timeout_s=WAIT_S)
        with WriterNode(sqlite_url(tmp_path), bus, seed=5, db=PATIENT_DB) as writer:
            writer.write(150)
        last = nb.create("port", "end", None, topic="t")
        wait_until(lambda: (last, "t") in published, WAIT_S, "the last event")
        nb.flush(timeout_s=WAIT_S)
        assert nb.db.unpublished() == []
    assert [found for found, times in published.items() if times > 1] == []


@pytest.mark.parametrize("source", ["feed", "bus"])
def test_a_controller_that_is_killed_comes_back_right(source: str, bus: str, tmp_path: pathlib.Path) -> None:
    used = bus if source == "bus" else None
    chance = random.Random(3)
    with open_nb(sqlite_url(tmp_path), used) as nb, WriterNode(sqlite_url(tmp_path), used, seed=1) as writer:
        writer.start_flood()
        for _ in range(1):
            with ControllerNode(sqlite_url(tmp_path), used, ["tenant-1/#"]) as controller:
                goal = nb.db.revision() + chance.randrange(1, 50)
                wait_until(lambda: nb.db.revision() >= goal, WAIT_S, "some writes")  # noqa: B023
                controller.kill()
        with ControllerNode(sqlite_url(tmp_path), used, ["tenant-1/#"]) as controller:
            writer.kill()

            def is_equal() -> bool:
                expected = [row for row in rows_of(nb) if row[2].startswith("tenant-1/")]
                return controller.rows() == expected

            nb.create("port", "sweeper", None, topic="t")  # the survivor sweeps when it writes
            wait_until(is_equal, WAIT_S, "the controller to equal the database")
