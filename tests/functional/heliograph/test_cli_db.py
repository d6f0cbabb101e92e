"""``heliograph db`` and ``heliograph controller``: what they print, what they write, how they end."""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from heliograph import exits
from heliograph.main import main
from nb_api import LocalCache, NbApi, notify_config
from nb_api.loading import open_db
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

Run = Callable[..., list[dict[str, Any]]]
WAIT_S = 60.0
KINDS = ("created", "updated", "deleted")


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return sqlite_url(tmp_path)


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the database; the JSON it prints, when it ends as expected."""

    def run(*words: str, code: int = exits.OK) -> list[dict[str, Any]]:
        assert main([*words, "--db", url, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_an_object_is_created_changed_listed_and_deleted(run: Run) -> None:
    created = run("db", "create", "port", "p1", '{"up": false}', "--topic", "tenant-7")[0]
    version = created["version"]
    assert created == {"table": "port", "key": "p1", "version": version, "result": "created"}
    changed = run("db", "set", "port", "p1", '{"up": true}', "--expected-version", str(version))[0]["version"]
    assert changed > version
    found = {"table": "port", "key": "p1", "topic": "tenant-7", "version": changed, "value": {"up": True}}
    assert run("db", "get", "port", "p1") == [found]
    assert run("db", "list", "port", "--topics", "tenant-7/#") == [found]
    assert run("db", "list", "port", "--topics", "tenant-8") == []
    assert run("db", "list") == [{"table": "port", "objects": 1}]
    assert run("db", "delete", "port", "p1", "--expected-version", str(changed))[0]["version"] > changed
    assert [change["action"] for change in run("db", "watch", "--after", "0", "--count", "3")] == [
        "create", "set", "delete",
    ]  # fmt: skip
    assert run("db", "compact", "--keep-changes", "0") == [{"forgotten": 3}]


def test_a_database_that_nobody_ever_wrote_to_is_told(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_db(url).close()
    assert main(["db", "list", "--db", url]) == exits.OK
    assert capsys.readouterr().err == "heliograph db: nothing was ever written to this database\n"
    run("db", "create", "port", "p1", "1", "--topic", "tenant-7")
    assert main(["db", "list", "--db", url]) == exits.OK
    assert capsys.readouterr().err == ""
    run("db", "delete", "port", "p1")
    assert main(["db", "list", "--db", url]) == exits.OK
    assert capsys.readouterr().err == "heliograph db: there are no objects\n"


def test_what_cannot_be_done_ends_with_its_exit_code(run: Run) -> None:
    run("db", "get", "port", "p1", code=exits.USAGE)
    run("db", "set", "port", "p1", "1", code=exits.USAGE)
    run("db", "set", "port", "p1", "{broken", code=exits.USAGE)
    run("db", "set", "port", "p1", "1", "--create", code=exits.USAGE)
    assert run("db", "set", "port", "p1", "1", "--create", "--topic", "t")[0]["version"] > 0
    run("db", "create", "port", "p1", "1", "--topic", "t", code=exits.USAGE)
    run("db", "set", "port", "p1", "2", "--expected-version", "9", code=exits.USAGE)
    run("db", "watch", "--count", "1", "--timeout", "0.1", code=exits.FAILED)
    run("db", "get", "port", "p1", "--bus", "memory://x", "--config-file", "x", code=exits.USAGE)


def test_lines_for_people(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["db", "create", "port", "p1", '{"up": true}', "--topic", "a", "--db", url])
    main(["db", "set", "port", "p1", '{"up": true}', "--topic", "b", "--db", url])
    main(["db", "list", "port", "--db", url])
    with contextlib.closing(open_db(url)) as db:
        first, second = (change.revision for change in db.changes(0))
    main(["db", "watch", "--after", str(first), "--count", "1", "--db", url])
    main(["controller", "--db", url, "--count", "1", "--timeout", "60", "--statistics"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        f"port/p1 has version {first} now",
        f"port/p1 has version {second} now",
        f'port/p1 v{second} b {{"up":true}}',
        f'{second} set port/p1 b (from a) {{"up":true}}',
        f'created port/p1 v{second} b {{"up":true}}',
    ]
    assert any("news.created" in line for line in lines)
    assert not any("callback_errors" in line for line in lines)  # it is 0
    assert lines[-1].endswith("counters more: 0 or empty")


def test_a_controller_prints_what_is_there_and_what_changes(run: Run, url: str) -> None:
    with open_nb(url) as nb:
        nb.create("port", "p1", 1, topic="tenant-7")
        nb.create("port", "other", 1, topic="tenant-8")
        writer = threading.Thread(target=_follow_up, args=(nb,))
        writer.start()
        printed = run(
            "controller",
            "--tables",
            "port",
            "--topics",
            "tenant-7/#",
            "--count",
            "3",
            "--timeout",
            "60",
            "--statistics",
        )
        writer.join()
    kinds = [next(iter(record)) for record in printed]
    assert kinds[0] == "created"
    assert [kind for kind in kinds if kind in KINDS] == list(KINDS)
    versions = [one["version"] for record in printed for kind, one in record.items() if kind in KINDS]
    assert versions == sorted(set(versions))  # that of the end, too, and not of what was there before it
    assert printed[-1]["statistics"]["news"]["updated"] == 1


def _follow_up(nb: NbApi) -> None:
    """Change the object once somebody has taken a slot to read the database, and given it back."""
    wait_until(
        lambda: any(change.action == "delete" for change in nb.db.changes(0)),
        WAIT_S,
        "the controller to have read the database",
    )
    nb.update("port", "p1", 2)
    nb.delete("port", "p1")


def test_a_controller_resyncs_from_a_snapshot(run: Run, tmp_path: pathlib.Path) -> None:
    run("db", "create", "port", "p1", "1", "--topic", "tenant-7")
    snapshot = str(tmp_path / "snapshots" / "1")
    assert run("db", "snapshot", snapshot)[0]["objects"] == 1
    run("db", "snapshot", snapshot, code=exits.USAGE)  # complete already
    run("db", "set", "port", "p1", "2")
    source = ["--resync-source", "snapshot", "--snapshot-directory", str(tmp_path / "snapshots")]
    shown = run("controller", "--count", "2", "--timeout", str(WAIT_S), "--statistics", *source)
    assert [one["value"] for record in shown for kind, one in record.items() if kind in ("created", "updated")] == [
        1,
        2,
    ]
    syncs = shown[-1]["statistics"]["syncs"]
    assert (syncs["snapshots"], syncs["source_failures"], syncs["rows"]) == (0, 0, 1)
    run("controller", "--timeout", "0.3", "--resync-source", "tape", code=exits.USAGE)


def test_a_controller_that_reaches_nothing_says_so(run: Run, tmp_path: pathlib.Path) -> None:
    run("db", "create", "port", "p1", "1", "--topic", "t")
    bus = f"redis://127.0.0.1:{free_port()}/0"
    run("controller", "--bus", bus, "--timeout", "0.3", code=exits.ENVIRONMENT)


def test_a_controller_that_sees_too_little_says_so(url: str) -> None:
    """When the time is too short for the first copy, on a machine that stands still, that is what it says instead."""
    open_db(url).close()
    for timeout_s in ("0.3", "3", "30"):
        code = main(["controller", "--count", "1", "--timeout", timeout_s, "--db", url])
        if code != exits.ENVIRONMENT:
            break
    assert code == exits.FAILED


def test_db_publishes_like_any_writer(run: Run, url: str, redis_server: RedisServer) -> None:
    bus = redis_server.new_prefix().replace("prefix=", "channel_prefix=") + ":"
    with open_nb(url, bus) as nb, LocalCache(nb) as cache:
        cache.wait_synced(timeout_s=WAIT_S)
        run("db", "create", "port", "p1", "1", "--topic", "t", "--bus", bus)
        wait_until(lambda: cache.get_all("port") == nb.get_all("port"), WAIT_S, "the cache to be told")
        assert cache.statistics().news.created == 1
        assert nb.db.unpublished() == []


def test_db_says_when_a_change_is_stored_and_not_published(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is at the bus: exit code 3, and the outbox has it."""
    monkeypatch.setattr(notify_config, "PUBLISH_TIMEOUT_S", 0.2)
    bus = f"redis://127.0.0.1:{free_port()}/0"
    conf = tmp_path / "heliograph.conf"
    conf.write_text(
        f"[pubsub]\nenable_df_pub_sub = true\npub_sub_driver = redis\n[redis]\nurl = {bus}\n[db]\nurl = {url}\n"
    )
    words = ["db", "create", "port", "p1", "1", "--topic", "t", "--config-file", str(conf)]
    assert main([*words, "--flush-timeout", "0.3"]) == exits.ENVIRONMENT
    printed = capsys.readouterr().out
    with open_nb(url) as nb:
        assert f"version {nb.get('port', 'p1').version} " in printed
        assert [change.key for change in nb.db.unpublished()] == ["p1"]


def test_a_copy_is_verified(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("verify", "--follow", "0s", code=exits.USAGE)  # there is no database
    for number in range(3):
        run("db", "create", "port", f"p{number}", "1", "--topic", "tenant-7")
    (found,) = run("verify", "--follow", "0s", "--tables", "port", "--topics", "tenant-7/#")
    assert found["verification"]["is_equal"]
    assert found["verification"]["objects"] == found["verification"]["values"] == 3
    table = found["verification"]["tables"]["port"]
    assert table["copy"] == table["database"]

    verify = LocalCache.verify

    def damaged(cache: LocalCache, **settings: Any) -> Any:
        entries: Any = cache._core.tables["port"]
        entries.pop("p1")
        return verify(cache, **settings)

    monkeypatch.setattr(LocalCache, "verify", damaged)
    difference, found = run("verify", "--follow", "0s", code=exits.FAILED)
    assert difference["difference"]["kind"] == "missing"
    assert difference["difference"]["copy"] is None
    assert difference["difference"]["database"]["key"] == "p1"
    assert not found["verification"]["is_equal"]
    monkeypatch.undo()
    run("verify", "--topics", "a//b", code=exits.USAGE)
    run("verify", "--bus", f"zmq://127.0.0.1:{free_port()}", "--timeout", "300ms", code=exits.ENVIRONMENT)


def test_a_verification_tells_people_what_differs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["db", "create", "port", "p1", "1", "--topic", "tenant-7", "--db", url])
    assert main(["verify", "--follow", "10ms", "--db", url]) == exits.OK
    told = capsys.readouterr()
    assert "equal: 1 objects as of revision" in told.out
    assert "following the feed" in told.err
    assert main(["verify", "--follow", "10ms", "--db", url, "--tables", "prot", "port"]) == exits.OK
    assert "no object of a table 'prot' was compared" in capsys.readouterr().err
