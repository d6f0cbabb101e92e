"""``heliograph log`` from end to end: real files, real processes where it matters."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
from typing import Any

import pytest

import durable_log
import pubsub_api
from durable_log.recording.recorder import Recorder
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from durable_log.upkeep.maintenance import Maintainer
from heliograph import exits
from heliograph.main import main
from pubsub_api.core.frame import Kind
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub
from shared_subscriptions import groups
from tests.functional.conftest import Bus, event
from tests.functional.heliograph.test_cli import Command
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_joined, wait_until

TOPIC = "tenant-7/port"


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


@pytest.fixture
def shard() -> int:
    return durable_log.shard_of(TOPIC, 2)


def fill(url: str, frames: int = 10) -> Source:
    source = Source()
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([source.frame(TOPIC, 5) for _ in range(frames)])
    return source


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Run a command that succeeds; what it says, as objects."""
    assert main(["log", *arguments, "--json"]) == exits.OK
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("verb", [["info"], ["tail"], ["seal"], ["verify"], ["trim", "--older-than", "1"],
                                  ["export", "/nowhere/x.jsonl"]])  # fmt: skip
def test_a_log_that_is_not_there_is_told_and_not_made(
    tmp_path: pathlib.Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", *verb, "--log", f"sqlite://{tmp_path}/mistyped.db"]) == exits.USAGE
    assert "there is no log at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_nothing_was_ever_appended_to_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    durable_log.open(url).close()
    assert main(["log", "tail", "--log", url]) == exits.OK
    assert capsys.readouterr().err == "heliograph log: nothing was ever appended to this log\n"
    fill(url)
    assert main(["log", "tail", "--log", url]) == exits.OK
    assert capsys.readouterr().err == ""


def test_info_tells_where_everything_stands(url: str, shard: int, capsys: pytest.CaptureFixture[str]) -> None:
    source = fill(url)
    [found] = answer(capsys, "info", "--log", url)
    assert [one["end"] for one in found["shards"]] == [50 if number == shard else 0 for number in range(2)]
    assert (found["segments"], found["streams"]) == (0, 1)
    [found] = answer(capsys, "info", "--log", url, "--streams", "--segments")
    assert found["streams"] == [{"shard": shard, "guid": source.guid.hex(), "topic": TOPIC, "last": 50, "missing": []}]
    assert main(["log", "info", "--log", url, "--streams", "--segments"]) == exits.OK
    shown = capsys.readouterr().out
    assert "50 events, 0 segments, 1 stream" in shown
    assert source.guid.hex() in shown


def test_tail_prints_the_newest_or_what_is_asked_for(url: str, capsys: pytest.CaptureFixture[str], shard: int) -> None:
    fill(url)
    assert [one["offset"] for one in answer(capsys, "tail", "--log", url, "--count", "3")] == [47, 48, 49]
    some = answer(capsys, "tail", "--log", url, "--offset", "31", "--shard", str(shard))
    assert [(one["offset"], one["number"]) for one in some] == [(number, number + 1) for number in range(31, 50)]
    assert some[0]["value"] == {"n": 32}
    assert len(answer(capsys, "tail", "--log", url, "--since", "3600")) == 50
    assert main(["log", "tail", "--log", url, "--count", "1"]) == exits.OK
    assert f"{shard}:49 " in capsys.readouterr().out


def test_tail_prints_only_some_topics_or_one_object(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source()
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([source.frame(f"t/{number % 5}", 40) for number in range(100)])
    found = answer(capsys, "tail", "t/2", "--log", url, "--since", "1h")
    assert [one["number"] for one in found] == list(range(1, 801))
    found = answer(capsys, "tail", "t/2", "t/3", "--log", url, "--count", "850")
    by_topic = {topic: [one["number"] for one in found if one["topic"] == topic] for topic in ("t/2", "t/3")}
    is_together = durable_log.shard_of("t/2", 2) == durable_log.shard_of("t/3", 2)
    assert len(found) == (850 if is_together else 1600)
    assert by_topic["t/3"] == list(range(801 - len(by_topic["t/3"]), 801))
    key = found[-1]["key"]
    some = answer(capsys, "tail", "t/#", "--key", key, "--log", url, "--count", "2")
    assert {one["key"] for one in some} == {key}
    assert answer(capsys, "tail", "nothing/#", "--log", url) == []


def test_info_tells_size_age_retention_and_lag(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    durable_log.open(url).close()
    [found] = answer(capsys, "info", "--log", url)
    assert (found["bytes"], found["age_s"], found["groups"]) == (0, None, [])
    fill(url)
    assert main(["group", "declare", "billing", "tenant-7/#", "--start", "earliest", "--log", url]) == exits.OK
    assert main(["log", "seal", "--log", url]) == exits.OK
    capsys.readouterr()
    [found] = answer(capsys, "info", "--log", f"{url}&retention_age=86400")
    [group] = found["groups"]
    assert (group["name"], group["lag"], group["is_lag_exact"], group["expired"]) == ("billing", 50, True, 0)
    assert 0 <= group["oldest_s"] <= found["age_s"] + 60
    assert group["left_s"] == 86_400 - group["oldest_s"]
    assert found["bytes"] == sum(one["bytes"] + one["sealed_bytes"] for one in found["shards"]) > 0
    assert found["retention"] == {"age_s": 86_400.0, "topics": [], "bytes": 0}
    [found] = answer(capsys, "info", "--log", f"{url}&retention_age=86400&retention_topics=tenant-7/%23=3600")
    assert 0 < found["groups"][0]["left_s"] <= 3600
    assert main(["log", "info", "--log", f"{url}&retention_age=86400&retention_bytes=1000000"]) == exits.OK
    shown = capsys.readouterr().out
    assert "dropped after 1d and beyond 1,000,000 bytes" in shown
    assert "billing" in shown
    assert "by topic" not in shown


def test_info_tells_what_retention_by_topic_has_dropped(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1&seal_age=0", Source()
    with durable_log.open(f"{url}&retention_topics=short=60") as log:
        groups.declare(log, "billing", "#")
        log.append([source.frame("kept", 5), source.frame("short", 10)])
        assert isinstance(log, SegmentedLog)
        with Maintainer(log) as maintainer:
            maintainer.run_once(log.now_ns() + 3600 * 10**9)
    [found] = answer(capsys, "info", "--log", url)
    assert (found["dropped_by_topic"], found["groups"][0]["expired"]) == (10, 10)
    assert main(["log", "info", "--log", url]) == exits.OK
    assert "retention by topic has dropped 10 events" in capsys.readouterr().out


def test_a_log_gets_shards_also_when_the_configuration_says_the_new_number_already(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url)
    grown = url.replace("shards=2", "shards=4")
    assert main(["log", "info", "--log", grown]) == exits.USAGE
    assert "'heliograph log set-shards' gives it more" in capsys.readouterr().err
    assert answer(capsys, "set-shards", "4", "--log", grown) == [{"shards": 4, "has_grown": True}]
    assert answer(capsys, "set-shards", "4", "--log", url) == [{"shards": 4, "has_grown": False}]


def test_seal_verify_and_trim(url: str, capsys: pytest.CaptureFixture[str], shard: int) -> None:
    fill(url)
    [sealed] = answer(capsys, "seal", "--log", url)
    [segment] = sealed["segments"]
    assert (segment["shard"], segment["rows"]) == (shard, 50)
    [found] = answer(capsys, "verify", "--log", url)
    assert (found["events"], found["segments"], found["problems"]) == (50, 1, [])
    [trimmed] = answer(capsys, "trim", "--log", url, "--older-than", "3600")
    assert set(trimmed["dropped"].values()) == {0}
    [trimmed] = answer(capsys, "trim", "--log", url, "--before", "50", "--shard", str(shard))
    assert trimmed["dropped"] == {str(shard): 50}
    assert not pathlib.Path(segment["path"]).exists()


def test_verify_names_what_is_wrong_and_fails(url: str, capsys: pytest.CaptureFixture[str], shard: int) -> None:
    fill(url)
    [sealed] = answer(capsys, "seal", "--log", url)
    path = pathlib.Path(sealed["segments"][0]["path"])
    path.write_bytes(path.read_bytes()[:-9])
    fill(url, 1)
    assert main(["log", "verify", "--log", url]) == exits.FAILED
    shown = capsys.readouterr().out
    assert f"shard {shard}, offsets 0 to 50: the segment {path} has" in shown
    assert "read 5 events" in shown


def test_what_cannot_work_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url)
    for arguments in (
        ["tail", "--log", url, "--shard", "2"], ["seal", "--log", url, "--shard", "9"], ["trim", "--log", url],
        ["info", "--log", "nothing://x"], ["info", "--log", "sqlite:///"], [],
    ):  # fmt: skip
        assert main(["log", *arguments]) != exits.OK
    assert "there is no shard 9: the log has 2" in capsys.readouterr().err


def test_a_recorder_process_records_until_it_is_interrupted(url: str) -> None:
    with contextlib.closing(durable_log.open(url)) as log, pubsub_api.open("zmq://127.0.0.1:0") as session:
        publisher = session.publisher()
        port = publisher.address.rpartition(":")[2]
        bus = f"zmq://127.0.0.1:{port}"
        with Command("log", "record", "tenant-7/#", "--log", url, "--bus", bus, "--json") as command:
            wait_until(lambda: command.out, 60, "the recorder to start")
            for number in range(1, 101):
                publisher.send_event(event(number))
            publisher.flush(timeout_s=60)
            wait_until(lambda: sum(state.end for state in log.state()) == 100, 60, "everything to be recorded")
            command.process.send_signal(signal.SIGINT)
            assert command.process.wait(60) == exits.OK
            counters = wait_until(lambda: "events" in command.out[-1] and json.loads(command.out[-1]), 60, "counters")
    assert counters["events"] == 100


@pytest.mark.parametrize("notices", ["recorder", "maintenance"])
def test_a_recorder_process_ends_when_its_log_is_not_there_any_more(tmp_path: pathlib.Path, notices: str) -> None:
    with RedisServer() as server, pubsub_api.open("zmq://127.0.0.1:0") as session:
        url = f"{server.address}?segment_directory={tmp_path}"
        publisher = session.publisher()
        arguments = ["tenant-7/#", "--log", url, "--bus", f"zmq://127.0.0.1:{publisher.address.rpartition(':')[2]}"]
        if notices == "recorder":
            arguments.append("--no-maintenance")
        with Command("log", "record", *arguments) as command:
            wait_until(lambda: command.out, 60, "the recorder to start")
            with server.client() as client:
                client.flushall()

            def has_ended() -> bool:
                if notices == "recorder":
                    publisher.send_event(event(1))
                return command.process.poll() is not None

            wait_until(has_ended, 60, "the recorder to end")
            assert command.process.wait(60) == exits.ENVIRONMENT
            wait_until(lambda: "there is none now" in "".join(command.err), 60, "the reason")


def test_a_cache_process_with_a_log_behind_it_repairs(url: str) -> None:
    faults, versions = Faults(seed=1), list[int]()
    bus = Bus("zmq", "zmq://127.0.0.1:0")
    publisher = bus.session(with_cache=False).publisher()
    with contextlib.closing(durable_log.open(url)) as log, contextlib.closing(bus):
        recorder = Recorder(bus.session(), log, ["#"], addresses=[publisher.address])
        recorder.wait_ready(timeout_s=60)
        arguments = ("--listen", publisher.address, "--bus", f"zmq://127.0.0.1:{free_port()}", "--log", url, "--json")
        with recorder, Command("cache", "--topics", "nothing-that-is-sent", TOPIC, *arguments) as cache:
            address = json.loads(wait_until(lambda: cache.out and cache.out[0], 60, "the cache to start"))["address"]
            session = bus.session(
                wrap_driver=lambda driver: FaultyPubSub(driver, faults), repair_attempts_max=20, repair_timeout=1.0
            )
            addresses = [publisher.address, address]
            subscriber = session.subscriber(["#"], lambda one: versions.append(one.version), addresses=addresses)
            wait_joined(subscriber, addresses)
            publisher.send_event(event(0))
            wait_until(lambda: versions == [0], 60, "the first event")
            faults.set(drop=1.0, kinds={Kind.DATA})
            publisher.send_events([event(number) for number in range(1, 50)])
            publisher.flush(timeout_s=60)
            wait_until(lambda: recorder.statistics().events == 50, 60, "everything to be recorded")
            faults.heal()
            publisher.send_event(event(50))
            wait_until(lambda: len(versions) == 51, 60, "the loss to be repaired")
            cache.process.send_signal(signal.SIGINT)
            assert cache.process.wait(60) == exits.OK
    assert versions == list(range(51))


def test_a_lost_store_is_repaired_from_the_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    with contextlib.closing(durable_log.open(f"{url}?shards=2")) as log:
        log.append([Source().frame(TOPIC, 30)])
    assert main(["log", "seal", "--log", url]) == 0
    (tmp_path / "log.db").unlink()
    assert main(["log", "info", "--log", url]) != 0
    assert "heliograph log repair" in capsys.readouterr().err
    assert main(["log", "repair", "--log", url, "--dry-run"]) == 0
    assert "would list 1 segment more with 30 events" in capsys.readouterr().out
    assert main(["log", "repair", "--log", url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["events"]) == (1, 30)
    assert main(["log", "verify", "--log", url]) == 0
    assert main(["log", "repair", "--log", url, "--give-up-damaged"]) == 0
    assert "no longer" not in capsys.readouterr().out
