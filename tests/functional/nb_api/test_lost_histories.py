"""A database that loses its history: every copy notices, from the bus and from the feed, and becomes what it is now.

Each test takes away what controllers have seen (an older copy is put back, everything is lost, the file is another
one) and writes on at once, past all that was seen, so that numbers alone tell nothing.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nb_api import LocalCache, NbApi, Resynced
from nb_api.errors import DbUnavailable
from pubsub_api import Event
from tests.helpers.followed import WAIT_S, followed, misfortunes, wait_equal, write
from tests.helpers.histories import DATABASES, Database, SqliteFile
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.waiting import wait_until

FOLLOWING = ["bus", "feed"]


@pytest.fixture(scope="module", params=DATABASES)
def any_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    with DATABASES[request.param]() as database:
        yield database


@pytest.fixture
def database(any_database: Database, tmp_path: pathlib.Path) -> Database:
    any_database.new(tmp_path)
    return any_database


@pytest.fixture
def sqlite_file(tmp_path: pathlib.Path) -> SqliteFile:
    database = SqliteFile()
    database.new(tmp_path)
    return database


def expect_noticed(copy: LocalCache, told: list[Resynced]) -> None:
    wait_until(lambda: copy.statistics().syncs.replaced > 0, WAIT_S, "the loss to be noticed")
    wait_until(lambda: any("history" in one.reason or "went back" in one.reason for one in told), WAIT_S, "to be told")


@pytest.mark.parametrize("following", FOLLOWING)
def test_an_older_copy_that_is_overtaken_is_noticed(database: Database, following: str) -> None:
    """The backup is younger than the last time the copy read the database, so only versions on the bus can tell."""
    with followed(database.url, following) as (nb, copy, told):
        for number in range(5):
            write(nb, f"kept{number}", 1)
        wait_equal(copy, nb)
        nb.flush(timeout_s=WAIT_S)
        database.backup()
        for number in range(5):
            write(nb, f"phantom{number}", 1)
            write(nb, f"kept{number}", "undone")
        wait_equal(copy, nb)
        nb.flush(timeout_s=WAIT_S)
        database.restore()
        for number in range(20):
            write(nb, f"kept{number % 3}", f"new {number}")
        expect_noticed(copy, told)
        wait_equal(copy, nb)
        write(nb, "later", 1)
        wait_equal(copy, nb)


@pytest.mark.parametrize("following", FOLLOWING)
def test_a_database_that_lost_everything_is_noticed(database: Database, following: str) -> None:
    with followed(database.url, following) as (nb, copy, told):
        for number in range(10):
            write(nb, f"gone{number}", 1)
        wait_equal(copy, nb)
        nb.flush(timeout_s=WAIT_S)
        database.lose()
        for number in range(15):
            write(nb, "new", number)
        expect_noticed(copy, told)
        wait_equal(copy, nb)
        assert [found.key for found in copy.get_all("port")] == ["new"]


def test_a_loss_between_two_readings_is_noticed_by_what_was_heard(sqlite_file: SqliteFile) -> None:
    """The copy has read the database once, at its start; all that it knows of the lost changes is from the bus."""
    with followed(sqlite_file.url, "bus", verify_interval=3.0) as (nb, copy, told):
        write(nb, "kept", 1)
        sqlite_file.backup()
        write(nb, "phantom", 1)
        wait_equal(copy, nb)
        nb.flush(timeout_s=WAIT_S)
        sqlite_file.restore()
        for number in range(10):
            write(nb, "new", number)
        wait_until(lambda: _value(copy, "new") == 9, WAIT_S, "the new history to be heard")
        expect_noticed(copy, told)
        wait_equal(copy, nb)


def _value(copy: LocalCache, key: str) -> Any:
    return {found.key: found.value for found in copy.get_all("port")}.get(key)


def test_changes_of_a_lost_history_that_come_late_do_not_stay(sqlite_file: SqliteFile) -> None:
    """A publisher may still have them in its queue when the copy has begun anew."""
    with followed(sqlite_file.url, "bus") as (nb, copy, _):
        sqlite_file.backup()
        lost = nb.db.create("port", "phantom", 1, topic="t")
        sqlite_file.restore()
        write(nb, "kept", 1)
        wait_equal(copy, nb)
        assert nb.session is not None
        with nb.session.publisher(name="late") as late:
            late.send_event(Event(topic="t", table="port", key="phantom", action="set", value=1, version=lost))
            late.send_event(Event(topic="t", table="port", key="behind", action="set", value=1))
            wait_until(lambda: copy.statistics().news.unversioned, WAIT_S, "what comes behind the late event")
        wait_equal(copy, nb)


def test_history_that_cannot_be_proved_is_read_again(tmp_path: pathlib.Path) -> None:
    with open_nb(sqlite_url(tmp_path)) as first:
        write(first, "a", 1)
    with followed(sqlite_url(tmp_path), "bus", verify_interval=1.0) as (nb, copy, told):

        def change_and_compact() -> bool:
            for number in range(3):
                write(nb, "a", number)
            nb.flush(timeout_s=WAIT_S)
            nb.db.compact(keep_changes=1, keep_tombstones_s=0)
            return copy.statistics().syncs.unproven > 0

        wait_until(change_and_compact, WAIT_S, "that nothing can be said")
        wait_until(lambda: any("cannot prove" in one.reason for one in told), WAIT_S, "the resync that says so")
        wait_equal(copy, nb)


@pytest.mark.parametrize("following", FOLLOWING)
def test_a_sqlite_file_that_is_replaced_is_noticed(tmp_path: pathlib.Path, following: str) -> None:
    path = tmp_path / "objects.db"
    with followed(sqlite_url(tmp_path), following) as (nb, copy, told):
        write(nb, "gone", 1)
        wait_equal(copy, nb)
        nb.flush(timeout_s=WAIT_S)
        with open_nb(sqlite_url(tmp_path, "other")) as other:
            for number in range(5):
                write(other, "new", number)
        wait_until(lambda: nb.db.unpublished() == [], WAIT_S, "nobody to write any more")
        _replace(tmp_path / "other.db", path)
        expect_noticed(copy, told)
        wait_equal(copy, nb)
        write(nb, "later", 1)
        wait_equal(copy, nb)


def _replace(new: pathlib.Path, path: pathlib.Path) -> None:
    for end in ("-wal", "-shm"):
        pathlib.Path(f"{path}{end}").unlink(missing_ok=True)
    shutil.move(new, path)


@pytest.mark.parametrize("call", [lambda nb: nb.get_all("port"), lambda nb: nb.put("port", "k", 1, topic="t")])
def test_a_sqlite_file_that_is_gone_is_an_error(tmp_path: pathlib.Path, call: Callable[[NbApi], object]) -> None:
    with open_nb(sqlite_url(tmp_path)) as nb:
        nb.put("port", "k", 1, topic="t")
        (tmp_path / "objects.db").unlink()
        with pytest.raises(DbUnavailable, match="gone"):
            call(nb)


@pytest.mark.parametrize("following", FOLLOWING)
def test_a_copy_survives_a_sample_of_misfortunes(database: Database, following: str) -> None:
    """`tests/chaos` has more of them."""
    misfortunes(database, following, rounds=2, seed=7)
