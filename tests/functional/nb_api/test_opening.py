"""One line opens a database and a bus; without it the environment does, and nothing is guessed."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from nb_api import LocalCache, NbApi
from nb_api.errors import NoDatabase
from pubsub_api import opening
from pubsub_api.errors import InvalidConfig, UsageError
from tests.helpers.nb_tools import memory_bus, nb_conf, sqlite_url
from tests.helpers.servers import free_port
from tests.helpers.waiting import WAIT_S


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in (opening.DB, opening.BUS, opening.LOG, opening.CONFIG):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opening, "SYSTEM_FILE", tmp_path / "etc.conf")


def place(nb: NbApi) -> str:
    """The file of its database."""
    with nb:
        return nb.db.url.path


def test_one_line_opens_a_database(tmp_path: pathlib.Path) -> None:
    url = sqlite_url(tmp_path)
    with NbApi.open(url) as nb, NbApi.open(url=url) as same:
        assert nb.session is None
        nb.create("port", "p1", 1, topic="t")
        assert same.get("port", "p1").value == 1


@pytest.mark.parametrize("driver", ["memory", "zmq"])
def test_one_line_opens_a_database_and_a_bus(driver: str, tmp_path: pathlib.Path) -> None:
    """The program publishes by itself: no publisher service is needed."""
    bus = memory_bus() if driver == "memory" else f"zmq://127.0.0.1:{free_port()}"
    with NbApi.open(sqlite_url(tmp_path), bus=bus) as nb, LocalCache(nb, tables=["port"]) as cache:
        nb.create("port", "p1", 1, topic="t")
        nb.flush(timeout_s=WAIT_S)
        cache.wait_synced(timeout_s=WAIT_S)
        assert cache.get_all("port") == nb.get_all("port")
        assert cache.statistics().bus is not None
        assert nb.statistics().handover.published == 1


def test_a_bus_may_be_used_through_the_publisher_service(tmp_path: pathlib.Path) -> None:
    bus = f"zmq://127.0.0.1:0?pub_sub_use_multiproc=true&publisher_multiproc_socket={tmp_path}/workers"
    with NbApi.open(sqlite_url(tmp_path), bus=bus) as nb:
        assert nb.conf.pubsub.pub_sub_use_multiproc
        assert nb.conf.pubsub.publisher_multiproc_socket == f"{tmp_path}/workers"


def test_a_file_says_whether_there_is_a_publisher_service(tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.conf").write_text("[pubsub]\npub_sub_use_multiproc = true\n")
    with NbApi.open(sqlite_url(tmp_path), bus="zmq://127.0.0.1:0", config_files=[tmp_path / "own.conf"]) as nb:
        assert nb.conf.pubsub.pub_sub_use_multiproc


def test_nothing_names_a_database(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ({}, {"bus": memory_bus()}, {"config_files": []}):
        with pytest.raises(NoDatabase, match="HELIOGRAPH_DB") as raised:
            NbApi.open(**arguments)  # type: ignore[arg-type]
        assert isinstance(raised.value, InvalidConfig)
    monkeypatch.setenv(opening.BUS, memory_bus())
    with pytest.raises(NoDatabase):
        NbApi.open()


def test_with_arguments_the_environment_is_not_recommended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(opening.DB, sqlite_url(tmp_path))
    with pytest.raises(NoDatabase, match="with arguments only these count") as raised:
        NbApi.open(bus=memory_bus())
    assert "set HELIOGRAPH_DB" not in str(raised.value)
    assert "there is no" not in str(raised.value)


@pytest.mark.parametrize("arguments", [{"url": 5}, {"url": "sqlite:///x.db", "bus": 5}])
def test_a_url_is_a_string(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a URL is a string"):
        NbApi.open(**arguments)


def test_the_environment_names_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc.conf").write_text(f"[db]\nurl = {sqlite_url(tmp_path, 'host')}\n")
    assert place(NbApi.open()).endswith("/host.db")
    (tmp_path / "own.conf").write_text(f"[db]\nurl = {sqlite_url(tmp_path, 'own')}\nchanges_kept = 7\n")
    monkeypatch.setenv(opening.CONFIG, str(tmp_path / "own.conf"))
    assert place(NbApi.open()).endswith("/own.db")
    monkeypatch.setenv(opening.DB, sqlite_url(tmp_path, "variable"))
    monkeypatch.setenv(opening.BUS, memory_bus())
    nb = NbApi.open()
    assert nb.session is not None
    assert nb.conf.db.changes_kept == 7
    assert place(nb).endswith("/variable.db")
    assert place(NbApi.open(sqlite_url(tmp_path, "mine"))).endswith("/mine.db")
    with NbApi.open(sqlite_url(tmp_path, "mine")) as nb:
        assert nb.session is None  # what the program gives counts, and nothing around it
        assert nb.conf.db.changes_kept != 7


def test_a_variable_of_oslo_config_names_it_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_DB__URL", sqlite_url(tmp_path, "oslo"))
    assert place(NbApi.open()).endswith("/oslo.db")


def test_a_conf_says_itself_which_bus_there_is(tmp_path: pathlib.Path) -> None:
    for arguments in ({"bus": memory_bus()}, {"config_files": []}):
        with pytest.raises(UsageError):
            NbApi.open(sqlite_url(tmp_path), conf=nb_conf(), **arguments)  # type: ignore[arg-type]


def test_one_file_is_no_list(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="list"):
        NbApi.open(config_files=str(tmp_path / "own.conf"))
