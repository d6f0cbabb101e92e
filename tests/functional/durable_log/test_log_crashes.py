"""Processes that die while they append or seal: nothing that was acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

import durable_log
from durable_log.log_api import LogApi
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_child import log_process
from durable_log.testing.sources import Source, check_consistent, numbers, read_events, read_frames
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import HeliographError
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.conformance.forks import in_forked_child
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until

TOPICS = [f"t/{number}" for number in range(5)]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    options = f"shards=2&seal_events=80&compact_topics=state&segment_directory={tmp_path}/segments"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/log.db?{options}"
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return f"{postgres.new_schema()}&{options}"
    server: RedisServer = request.getfixturevalue("server")
    return f"{server.address}?key_prefix={uuid.uuid4().hex}:&{options}"


@pytest.fixture
def log(url: str) -> Iterator[SegmentedLog]:
    with contextlib.closing(durable_log.open(url)) as log:
        assert isinstance(log, SegmentedLog)
        yield log


def seal_everything(log: SegmentedLog) -> None:
    for shard in range(log.shards):
        Sealer(log).seal(shard)


def check_everything(log: LogApi, source: Source, told: dict[str, int]) -> None:
    for topic, last in told.items():
        stored = numbers(log, source.guid, topic)
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= last, f"{topic}: {last} was acknowledged"
    check_consistent(log)


def kill_while_appending(url: str, log: SegmentedLog, seed: int) -> None:
    """Two processes append the same stream; both are killed at a random moment, while this one seals."""
    chance, source, told = random.Random(seed), Source(), dict.fromkeys(TOPICS, 0)
    with log_process(url) as first, log_process(url) as second:
        for child in (first, second):
            child.receive()

        def listen(child: ChildProcess, moment: threading.Event) -> None:
            with contextlib.suppress(HeliographError):
                answer = child.ask(append_without_end=TOPICS, guid=source.guid.hex())
                while True:
                    told[answer["topic"]] = max(told[answer["topic"]], answer["last"])
                    moment.set()
                    answer = child.receive()

        moments = [threading.Event(), threading.Event()]
        threads = [threading.Thread(target=listen, args=pair) for pair in zip((first, second), moments, strict=True)]
        for thread in threads:
            thread.start()
        for moment in moments:
            assert moment.wait(60)
        for _ in range(chance.randint(1, 4)):
            seal_everything(log)
        target = sum(told.values()) + chance.randint(1, 3000)
        wait_until(lambda: sum(told.values()) >= target, 200, "appends")
        for child in chance.sample([first, second], 2):
            child.kill()
        for thread in threads:
            thread.join()
    check_everything(log, source, told)
    seal_everything(log)
    check_everything(log, source, told)
    log.append([source.frame(topic) for topic in TOPICS])
    assert Sealer(log).clean() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # Redis appends so fast that sealing takes minutes
@pytest.mark.parametrize("seed", [1])
def test_whoever_is_killed_while_appending_loses_nothing(url: str, log: SegmentedLog, seed: int) -> None:
    kill_while_appending(url, log, seed)


@pytest.mark.parametrize("step", ["lock", "write", "commit", "publish"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_sealer_that_dies_between_two_steps_harms_nothing(log: SegmentedLog, step: str, rounds: int) -> None:
    source = Source()
    sent = [source.frame("t", 30) for _ in range(30)]
    log.append(sent)
    shard = durable_log.shard_of("t", log.shards)

    def seal_and_die() -> str:
        passed = 0

        def die(done: str) -> None:
            nonlocal passed
            passed += done == step
            if passed == rounds:
                os.kill(os.getpid(), signal.SIGKILL)

        Sealer(log, on_step=die).seal(shard)
        return "alive"

    assert in_forked_child(seal_and_die) == ""
    sealed = log.state()[shard].sealed
    assert [one.frame for one in read_frames(log, shard)] == sent
    assert sealed == sum(segment.rows for segment in log.segments(shard))
    assert Sealer(log).clean() == [], "what is young may be wanted by somebody"
    for path in pathlib.Path(log.segment_store.place).glob("*/*"):
        os.utime(path, (0, 0))
    orphans = Sealer(log).clean()
    assert [pathlib.Path(path).suffix for path in orphans] == ([".tmp"] if step == "write" else [])
    assert [one.frame for one in read_frames(log, shard)] == sent
    seal_everything(log)
    assert [one.frame for one in read_frames(log, shard)] == sent
    there = {str(path) for path in pathlib.Path(log.segment_store.place).glob("*/*")}
    assert there == {segment.path for segment in log.segments()}
    check_consistent(log)


def test_a_trim_that_dies_before_the_files_go_leaves_orphans_only(log: SegmentedLog) -> None:
    source = Source()
    log.append([source.frame("t", 30) for _ in range(30)])
    shard = durable_log.shard_of("t", log.shards)
    seal_everything(log)
    first, *others = log.segments(shard)

    def trim_and_die() -> str:
        log.remove_files = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        log.trim(shard, first.end)
        return "alive"

    assert in_forked_child(trim_and_die) == ""
    assert log.segments(shard) == others
    assert log.read(shard, first.end)[0].offset == first.end
    assert Sealer(log).clean() == [first.path]
    check_consistent(log)


@pytest.mark.parametrize("step", ["write", "commit", "publish"])
def test_a_compaction_that_dies_between_two_steps_loses_nothing(log: SegmentedLog, step: str) -> None:
    source = Source()
    shard = durable_log.shard_of("state", log.shards)
    for _ in range(3):
        log.append([source.frame("state", 100)])
        Sealer(log).seal(shard)
    newest = {(one.event.table, one.event.key): one.event.version for one in read_events(log, shard)}

    def held() -> dict[tuple[str, str], int]:
        return {(one.event.table, one.event.key): one.event.version for one in read_events(log, shard)}

    def compact_and_die() -> str:
        def die(done: str) -> None:
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

        SegmentCompactor(log, Sealer(log), on_step=die).compact(shard, time.time_ns())
        return "alive"

    before = set(pathlib.Path(log.segment_store.place).glob("*/[0-9]*.parquet"))
    assert in_forked_child(compact_and_die) == ""
    assert held() == newest
    removed = {pathlib.Path(path) for path in Sealer(log).clean()}
    assert len(removed) == (0 if step == "write" else 1)
    assert removed <= before, "only what was replaced"
    assert held() == newest
    SegmentCompactor(log, Sealer(log)).compact(shard, time.time_ns())
    assert held() == newest
    assert len(read_events(log, shard)) < 300
    assert verify(log).problems == []
    for path in pathlib.Path(log.segment_store.place).glob("*/.*.tmp"):
        os.utime(path, (0, 0))
    Sealer(log).clean()
    there = {str(path) for path in pathlib.Path(log.segment_store.place).glob("*/*")}
    assert there == {segment.path for segment in log.segments()}
