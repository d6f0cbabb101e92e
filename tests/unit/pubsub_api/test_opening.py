"""Where the configuration of a session comes from, and what counts before what."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg

import pubsub_api
from durable_log import config as log_config
from pubsub_api import aio, opening
from pubsub_api.errors import DriverNotFound, InvalidConfig, UsageError

FILE = "[pubsub]\npub_sub_driver = {driver}\nmax_idle_time = {idle}\n"


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in (opening.DB, opening.BUS, opening.LOG, opening.CONFIG):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opening, "SYSTEM_FILE", tmp_path / "etc" / "heliograph.conf")


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Callable[..., str]:
    def write(name: str, *, driver: str = "memory", idle: float = 2.0) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILE.format(driver=driver, idle=idle))
        return str(path)

    return write


def seen(session: pubsub_api.Session) -> tuple[str, float]:
    with session:
        options = session.conf.pubsub
        return options.pub_sub_driver, options.max_idle_time


def log_url(conf: cfg.ConfigOpts) -> str:
    conf.register_opts(log_config.OPTIONS, group=log_config.GROUP)
    return str(conf.log.url)


def test_without_anything_the_defaults_count() -> None:
    assert seen(pubsub_api.open()) == ("zmq", 5.0)


def test_the_file_of_the_host_counts_when_nothing_is_given(written: Callable[..., str]) -> None:
    written("etc/heliograph.conf", idle=3.0)
    assert seen(pubsub_api.open()) == ("memory", 3.0)


def test_a_file_of_the_environment_counts_before_that_of_the_host(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written("etc/heliograph.conf", idle=3.0)
    monkeypatch.setenv(opening.CONFIG, written("own.conf", idle=4.0))
    assert seen(pubsub_api.open()) == ("memory", 4.0)


def test_of_several_files_the_later_one_counts(written: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = [written("a.conf", idle=4.0), written("b.conf", idle=6.0)]
    monkeypatch.setenv(opening.CONFIG, os.pathsep.join(files))
    assert seen(pubsub_api.open()) == ("memory", 6.0)


def test_a_url_of_the_environment_counts_before_files_which_say_the_rest(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(opening.CONFIG, written("own.conf", driver="redis", idle=4.0))
    monkeypatch.setenv(opening.BUS, "memory://around")
    monkeypatch.setenv(opening.LOG, "sqlite:///around/log.db")
    with pubsub_api.open() as session:
        assert session.conf.memory.name == "around"
        assert log_url(session.conf) == "sqlite:///around/log.db"
        assert session.conf.pubsub.max_idle_time == 4.0


@pytest.mark.parametrize("name", ["url", "config_files", "conf", "log"])
def test_what_the_program_gives_counts_and_nothing_around_it(
    name: str, written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written("etc/heliograph.conf", idle=3.0)
    monkeypatch.setenv(opening.CONFIG, written("own.conf", driver="redis", idle=4.0))
    monkeypatch.setenv(opening.BUS, "redis://around")
    monkeypatch.setenv(opening.LOG, "sqlite:///around/log.db")
    if name == "url":
        assert seen(pubsub_api.open("memory://mine")) == ("memory", 5.0)
    elif name == "config_files":
        assert seen(pubsub_api.open(config_files=[written("mine.conf", idle=9.0)])) == ("memory", 9.0)
    elif name == "conf":
        assert seen(pubsub_api.open(conf=opening.conf_of(bus="memory://mine"))) == ("memory", 5.0)
    else:
        with pubsub_api.open(log="sqlite:///mine/log.db") as session:
            assert log_url(session.conf) == "sqlite:///mine/log.db"
            assert session.conf.pubsub.pub_sub_driver == "zmq"


def test_a_url_counts_before_the_files_that_are_given_with_it(written: Callable[..., str]) -> None:
    files = [written("mine.conf", driver="redis", idle=9.0)]
    assert seen(pubsub_api.open("memory://mine", config_files=files)) == ("memory", 9.0)


def test_a_conf_is_given_alone() -> None:
    conf = opening.conf_of(bus="memory://mine")
    for arguments in ({"url": "memory://other"}, {"log": "sqlite:///log.db"}, {"config_files": []}):
        with pytest.raises(UsageError):
            pubsub_api.open(conf=conf, **arguments)  # type: ignore[arg-type]


def test_a_file_that_is_named_and_missing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv(opening.CONFIG, str(tmp_path / "typo.conf"))
    with pytest.raises(InvalidConfig, match=r"typo\.conf"):
        pubsub_api.open()


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (opening.DB, opening.BUS, opening.LOG, opening.CONFIG):
        monkeypatch.setenv(name, "")
    assert opening.surroundings() == opening.Surroundings(None, None, None, ())
    assert seen(pubsub_api.open()) == ("zmq", 5.0)


def test_the_same_for_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(opening.BUS, "memory://around")
    assert aio.open().blocking.conf.memory.name == "around"
    assert log_url(aio.open("memory://mine", log="sqlite:///mine/log.db").blocking.conf) == "sqlite:///mine/log.db"


@pytest.mark.parametrize("arguments", [{"url": 5}, {"url": "memory://x", "log": 5}])
def test_a_url_is_a_string(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a URL is a string"):
        pubsub_api.open(**arguments)


def test_a_log_that_no_driver_knows_is_refused_at_once() -> None:
    with pytest.raises(DriverNotFound, match="'nosuch'.*available: .*sqlite"):
        pubsub_api.open("memory://x", log="nosuch://there")
