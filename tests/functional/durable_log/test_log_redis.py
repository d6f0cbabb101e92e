"""The log in Redis when its server is not what it should be."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator
from typing import TypeVar

import pytest

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, check_consistent
from durable_log.upkeep.maintenance import Maintainer
from heliograph.main import main
from pubsub_api.errors import InvalidConfig
from tests.helpers.servers import RedisServer

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
TOPIC = "t"
T = TypeVar("T")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(config=DURABLE) as server:
        yield server


def test_a_server_that_forgets_is_warned_of(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer(config={"maxmemory-policy": "allkeys-lru"}) as server:
        durable_log.open(server.address).close()
        assert main(["doctor", "--bus", "memory://x", "--log", server.address, "--timeout", "60", "--json"]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert [one["status"] for one in findings if one["check"] == "log"] == ["warning", "warning"]
    assert "keeps the log in memory only" in caplog.text
    assert "may evict keys of the log" in caplog.text


def test_a_server_that_writes_to_its_disk_later_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(config={"appendonly": "yes", "appendfsync": "everysec"}) as server:
        durable_log.open(server.address).close()
    assert "has appendfsync everysec" in caplog.text
    assert "in memory only" not in caplog.text


def test_a_good_server_is_not_warned_of(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    durable_log.open(server.address).close()
    assert [record.getMessage() for record in caplog.records if "log" in record.name] == []


def test_sealing_needs_a_directory_that_somebody_named(server: RedisServer, tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(f"{server.address}?shards=1")) as log:
        assert isinstance(log, SegmentedLog)
        log.append([Source().frame(TOPIC, 3)])
        with pytest.raises(InvalidConfig, match="every host of the log has mounted"):
            Sealer(log).seal(0)
    with contextlib.closing(durable_log.open(f"{server.address}?segment_directory={tmp_path}")) as log:
        assert isinstance(log, SegmentedLog)
        assert len(Sealer(log).seal(0)) == 1


def contents(server: RedisServer) -> dict[bytes, bytes | None]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.keys("*")}


@pytest.mark.parametrize(
    ("fields", "has_frames", "said"),
    [
        ({"shards": 2}, True, "the format of an earlier release"),
        ({"shards": 2}, False, "the format of an earlier release"),
        ({"shards": 2, "identity": "ab" * 16}, True, "the format of an earlier release"),
        ({"shards": 2, "identity": "ab" * 16, "format": "17"}, False, "format 17, that of another release"),
    ],
)
def test_a_log_of_another_format_is_named_and_left_as_it_is(
    server: RedisServer, fields: dict[str, str | int], has_frames: bool, said: str
) -> None:
    prefix, source = "heliograph:log:", Source()
    with server.client() as client:
        client.hset(f"{prefix}log", mapping=fields)
        if has_frames:  # as the first release stored them
            entry = {"c": 3, "s": 0, "t": "1" * 19, "k": source.guid + TOPIC.encode(), "f": source.frame(TOPIC, 3)}
            client.xadd(f"{prefix}frames:1", entry, id="0-1")
            client.hset(f"{prefix}shard:1", mapping={"end": 3, "bytes": 100, "ns": "1" * 19})
    before = contents(server)
    with pytest.raises(InvalidConfig, match=f"{said}.*Read it with the release that made it.*key_prefix"):
        durable_log.open(server.address)
    assert contents(server) == before
    with contextlib.closing(durable_log.open(f"{server.address}?key_prefix=new:&shards=1")) as log:
        log.append([source.frame(TOPIC, 3)])


def test_a_log_that_does_not_say_its_format_is_known_by_its_frames(server: RedisServer) -> None:
    source = Source()
    with contextlib.closing(durable_log.open(f"{server.address}?shards=2")) as log:
        log.append([source.frame(TOPIC, 3)])
    with server.client() as client:
        client.hdel("heliograph:log:log", "format")
    for _ in range(2):
        with contextlib.closing(durable_log.open(server.address)) as log:
            log.append([source.frame(TOPIC, 3)])
            check_consistent(log)
    assert client.hget("heliograph:log:log", "format") == b"2"


def test_keys_of_another_program_are_not_touched(server: RedisServer) -> None:
    with server.client() as client:
        client.set("mine:log", "something else")
        with pytest.raises(InvalidConfig, match="cannot be used for a log"):
            durable_log.open(f"{server.address}?key_prefix=mine:")
        assert client.get("mine:log") == b"something else"


def test_who_waits_for_a_shard_that_an_older_state_of_the_server_lacks_goes_on(server: RedisServer) -> None:
    """As after a restart from a file that is older than the last shards."""
    source = Source()
    with server.client() as client, contextlib.closing(durable_log.open(f"{server.address}?shards=1")) as log:
        log.append([source.frame(TOPIC)])
        keys = {key: client.dump(key) for key in client.scan_iter()}
        log.set_shards(2)
        client.flushall()
        for key, value in keys.items():
            client.restore(key, 0, value)
        assert not log.wait({0: 1, 1: 0}, timeout_s=0.01)
        assert log.wait({0: 0}, timeout_s=60)


def test_what_is_sealed_leaves_the_server(server: RedisServer, tmp_path: pathlib.Path) -> None:
    with contextlib.closing(durable_log.open(f"{server.address}?shards=1&segment_directory={tmp_path}")) as log:
        assert isinstance(log, SegmentedLog)
        source = Source()
        log.append([source.frame(f"t/{number % 3}", 2) for number in range(1200)])
        Sealer(log).seal(0)
        with server.client() as client:
            assert client.xlen("heliograph:log:frames:0") == 0
            assert client.keys("heliograph:log:numbers:*") == []
        assert log.state()[0].bytes == 0
        check_consistent(log)


def test_a_wrong_clock_of_a_host_drops_nothing(
    server: RedisServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ages are by the clock that stamped the events, the server's."""
    url = f"{server.address}?shards=1&segment_directory={tmp_path}&retention_age=3600"
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.append([Source().frame(TOPIC, 5)])
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() + 365 * 86400 * 10**9)
        with Maintainer(log) as maintainer:
            maintainer.run_once()
        assert main(["log", "trim", "--older-than", "3600", "--log", url]) == 0
        capsys.readouterr()
        assert main(["log", "tail", "--since", "3600", "--log", url, "--json"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 5
        assert log.state()[0].start == 0
        assert len(log.streams(0)) == 1


@pytest.mark.parametrize("ahead_s", [60, 365 * 86400])
def test_a_clock_that_was_far_ahead_is_not_followed_for_ever(server: RedisServer, ahead_s: int) -> None:
    with contextlib.closing(durable_log.open(f"{server.address}?shards=1&key_prefix=ahead{ahead_s}:")) as log:
        ahead_ns = time.time_ns() + ahead_s * 10**9
        with server.client() as client:
            client.hset(f"ahead{ahead_s}:shard:0", "ns", ahead_ns)
        log.append([Source().frame(TOPIC, 1)])
        [stored] = log.read(0, 0)
        assert (stored.appended_ns == ahead_ns) == (ahead_s == 60), "times do not fall for less"
