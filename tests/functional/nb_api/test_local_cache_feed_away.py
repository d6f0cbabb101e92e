"""A copy that follows the database's feed while the database is away: it does not pass for complete."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from nb_api import LocalCache, NbApi, Resynced, notify_config
from nb_api.cache.reading.change_source import NO_FEED
from nb_api.errors import DbUnavailable
from pubsub_api.errors import WaitTimeout
from tests.helpers.followed import wait_equal, write
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import WAIT_S, wait_until


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_config, "FEED_PATIENCE_S", 0.2)


@contextlib.contextmanager
def following(nb: NbApi) -> Iterator[tuple[LocalCache, list[Resynced]]]:
    told: list[Resynced] = []

    def note(changes: Any) -> None:
        told.extend(change for change in changes if isinstance(change, Resynced))

    with LocalCache(nb, on_changes=note) as copy:
        copy.wait_synced(timeout_s=WAIT_S)
        yield copy, told


@pytest.fixture
def here(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of a database.  Renamed, it takes away all files of it at once."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.mark.usefixtures("hasty")
def test_a_copy_whose_file_is_gone_is_not_complete(here: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_nb(sqlite_url(here)) as nb, following(nb) as (copy, told):
        write(nb, "before", 1)
        wait_equal(copy, nb)
        with caplog.at_level(logging.WARNING, "nb_api"):
            away = here.rename(here.with_name("away"))
            wait_until(lambda: not copy.statistics().is_synced, WAIT_S, "the copy to be incomplete")
        assert [found.key for found in copy.get_all("port")] == ["before"]
        with pytest.raises(WaitTimeout):
            copy.wait_synced(timeout_s=0)
        assert any("objects.db could not be read for" in line and "since 20" in line for line in caplog.messages)
        away.rename(here)
        copy.wait_synced(timeout_s=WAIT_S)
        assert NO_FEED in told[-1].reason
        write(nb, "after", 1)
        wait_equal(copy, nb)
        assert copy.statistics().is_synced


@pytest.mark.usefixtures("hasty")
def test_what_was_written_meanwhile_is_there_when_the_copy_is_complete_again(here: pathlib.Path) -> None:
    with open_nb(sqlite_url(here)) as nb, following(nb) as (copy, _):
        write(nb, "before", 1)
        wait_equal(copy, nb)
        away = here.rename(here.with_name("away"))
        wait_until(lambda: not copy.statistics().is_synced, WAIT_S, "the copy to be incomplete")
        with open_nb(sqlite_url(away)) as other:
            write(other, "meanwhile", 1)
        away.rename(here)
        copy.wait_synced(timeout_s=WAIT_S)
        assert [found.key for found in copy.get_all("port")] == ["before", "meanwhile"]


@pytest.mark.usefixtures("hasty")
def test_a_copy_whose_server_is_killed_is_not_complete() -> None:
    with RedisServer() as server, open_nb(server.new_prefix()) as nb, following(nb) as (copy, _):
        write(nb, "before", 1)
        wait_equal(copy, nb)
        server.kill()
        wait_until(lambda: not copy.statistics().is_synced, WAIT_S, "the copy to be incomplete")
        server.restart()
        copy.wait_synced(timeout_s=WAIT_S)
        write(nb, "after", 1)
        wait_equal(copy, nb)


def test_one_attempt_that_fails_says_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_config, "FEED_PATIENCE_S", 0.0)
    with open_nb(sqlite_url(tmp_path)) as nb, following(nb) as (copy, told):
        with mock.patch.object(nb.db, "wait", wraps=nb.db.wait) as waiting:
            waiting.side_effect = [DbUnavailable("for a moment"), *[mock.DEFAULT] * 100_000]
            wait_until(lambda: copy.statistics().syncs.failures == 1, WAIT_S, "the attempt to fail")
            write(nb, "after", 1)
            wait_equal(copy, nb)
        assert copy.statistics().is_synced
        assert [one.reason for one in told] == ["initial"]
