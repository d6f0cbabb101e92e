"""From a URL or a configuration to a log, and what is said when that cannot be."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3

import pytest

import durable_log
from durable_log import config
from durable_log.loading import build_log, portable_url
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.config import new_conf
from pubsub_api.errors import DriverNotFound, HeliographError, InvalidConfig


def test_the_url_of_the_configuration_is_used(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text(f"[log]\nurl = sqlite://{tmp_path}/log.db\nshards = 3\n")
    for opened in (durable_log.open(config_files=[file]), durable_log.open(conf=new_conf([file]))):
        with contextlib.closing(opened) as log:
            assert log.shards == 3


def test_a_portable_url_keeps_what_the_driver_takes_itself() -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://user:secret@a:1,b:2/db?schema=mine&sslmode=verify-full&shards=4"
    conf = new_conf()
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    conf.set_override("retention_age", 60.0, group=config.GROUP)
    assert portable_url(url, conf=conf) == f"{url}&retention_age=60.0"
    with contextlib.closing(build_log(url)) as log:
        assert log.url.query == "schema=mine&sslmode=verify-full"
        assert "secret" not in repr(log)


def test_a_portable_url_says_what_the_configuration_says(tmp_path: pathlib.Path) -> None:
    place = f"sqlite:///{tmp_path}/log.db"  # a fourth slash, which must stay
    conf = new_conf()
    assert portable_url(place, conf=conf) == place
    file = tmp_path / "heliograph.conf"
    file.write_text(
        f"[log]\nurl = {place}?shards=3\nshards = 5\nsegment_directory = {tmp_path}/a b&c\n"
        "compact_topics = a/#, b\n[log_sqlite]\nsynchronous = normal\n"
    )
    url = portable_url(None, conf=new_conf([file]))
    assert url.startswith(f"{place}?shards=3&")
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        assert log.shards == 3, "the URL has the last word"
        assert pathlib.Path(log.segment_store.place) == tmp_path / "a b&c"
        assert log.conf["log"].compact_topics == ["a/#", "b"]
        assert log.conf["log_sqlite"].synchronous == "normal"


def test_a_new_log_has_sixteen_shards(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db")) as log:
        assert log.shards == 16


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nothing://x", "available: postgres, postgresql, redis, redis+cluster, redis+sentinel, rediss"),
        ("log.db", "does not name a log"),
        ("sqlite:///", "names no SQLite file"),
        ("sqlite://host/log.db", "names no SQLite file"),
        ("sqlite:///no/such/directory/log.db", "does not exist: make /no/such/directory"),
        ("sqlite:///tmp/log.db?shards=0", "shards"),
        ("sqlite:///tmp/log.db?shards=many", "shards"),
        ("sqlite:///tmp/log.db?unknown=1", "'unknown' is no option; options are compact_tombstone_age"),
        ("sqlite:///tmp/log.db?url=x", "'url' is no option"),
        ("sqlite:///tmp/log.db?shards", "option=value pairs"),
        ("sqlite:///tmp/log.db?synchronous=never", "synchronous"),
    ],
)
def test_what_cannot_be_opened_is_explained(url: str, problem: str) -> None:
    with pytest.raises((InvalidConfig, DriverNotFound)) as caught:
        durable_log.open(url)
    assert problem in str(caught.value)


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    with pytest.raises(InvalidConfig, match="another program"):
        durable_log.open(f"sqlite://{path}")
    text = tmp_path / "text.db"
    text.write_text("not a database, and long enough to be looked at " * 50)
    with pytest.raises(InvalidConfig, match="cannot be used as a log"):
        durable_log.open(f"sqlite://{text}")
    assert text.read_text().startswith("not a database")


@pytest.mark.parametrize("login", ["user:secret", "user:a@secret", "user:a/secret", "user:secret/a"])
def test_passwords_are_not_shown(login: str) -> None:
    with pytest.raises(HeliographError) as caught:
        durable_log.open(f"nothing://{login}@host/0")
    assert "secret" not in str(caught.value)


def test_a_path_is_shown_with_all_its_characters(tmp_path: pathlib.Path) -> None:
    with pytest.raises(durable_log.LogNotFound, match=f"{tmp_path}/a@b/log.db"):
        durable_log.open(f"sqlite://{tmp_path}/a@b/log.db", must_exist=True)


def test_logs_are_private_to_the_user(tmp_path: pathlib.Path) -> None:
    durable_log.open(f"sqlite://{tmp_path}/log.db").close()
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600
