"""Logs on a server that is killed, away, frozen, emptied, or comes back without what it had: the same for each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.testing.sources import Source, check_consistent, numbers
from durable_log.upkeep.maintenance import Maintainer
from tests.helpers.logs import in_time, opened
from tests.helpers.server_process import ServerProcess
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until

TOPIC = "t"
KILLS = 3


@dataclasses.dataclass
class LogServer:
    process: ServerProcess
    url: str
    """Of a log of two shards."""
    empty: Callable[[], None]
    """Removes everything from the server while it runs."""


def _redis() -> Iterator[LogServer]:
    with RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server:

        def flush() -> None:
            with server.client() as client:
                client.flushall()

        yield LogServer(server, f"{server.address}?shards=2", flush)


def _postgres() -> Iterator[LogServer]:
    with PostgresServer() as server:

        def drop() -> None:
            with server.client() as client:
                client.execute("DROP SCHEMA heliograph_log CASCADE")

        yield LogServer(server, f"{server.url()}?shards=2", drop)


@pytest.fixture(params=[_redis, _postgres], ids=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[LogServer]:
    yield from request.param()


def test_what_was_appended_survives_a_killed_server(server: LogServer) -> None:
    source = Source()
    with opened(server.url) as log:
        sent = [source.frame(TOPIC, 3) for _ in range(20)]
        log.append(sent[:10])
        log.put_records([("a", b"1", 0)])
        server.process.restart()
        log.append(sent)
        assert numbers(log, source.guid, TOPIC) == list(range(1, 61))
        record = log.get_record("a")
        assert record is not None
        assert record.value == b"1"
        check_consistent(log)


def test_a_server_that_is_killed_again_and_again_loses_nothing_that_was_acknowledged(server: LogServer) -> None:
    """Whether an append happened whose answer was lost is not known: the same frames are appended again."""
    source, done = Source(), threading.Event()
    acknowledged: list[int] = []

    def append_until_done() -> None:
        while not done.is_set():
            frames = [source.frame(TOPIC, 3), source.frame("other", 3)]
            in_time(functools.partial(log.append, frames))
            acknowledged.append(3 * (len(acknowledged) + 1))

    with opened(server.url) as log, ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append_until_done)
        try:
            for _ in range(KILLS):
                target = len(acknowledged) + 20
                wait_until(lambda: len(acknowledged) >= target or appending.done(), 60, "appends")  # noqa: B023
                server.process.restart()
        finally:
            done.set()
        appending.result(60)
        for topic in (TOPIC, "other"):
            assert in_time(lambda: numbers(log, source.guid, topic)) == list(range(1, acknowledged[-1] + 1))  # noqa: B023
        check_consistent(log)


def test_a_server_that_is_away_is_told_and_nothing_is_doubled(server: LogServer) -> None:
    source = Source()
    frames = [source.frame(TOPIC, 3) for _ in range(3)]
    with opened(server.url) as log:
        log.append(frames[:1])
        server.process.kill()
        for call in (lambda: log.append(frames), log.state, lambda: log.wait({0: 0}, timeout_s=10)):
            with pytest.raises(durable_log.LogUnavailable):
                call()
        with pytest.raises(durable_log.LogUnavailable):
            durable_log.open(server.url)
        server.process.restart()
        assert log.append(frames).events == 6
        assert numbers(log, source.guid, TOPIC) == list(range(1, 10))


def test_who_waits_is_told_that_the_server_was_killed(server: LogServer) -> None:
    with opened(server.url) as log, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, {0: 0}, timeout_s=600)
        wait_until(waiting.running, 60, "the thread to run")
        server.process.kill()
        with pytest.raises(durable_log.LogUnavailable):
            waiting.result(60)


def test_a_frozen_server_is_given_up_after_the_time_that_is_set(server: LogServer) -> None:
    url = f"{server.url}&operation_timeout=0.3"
    with contextlib.closing(in_time(lambda: durable_log.open(url))) as log:
        source = Source()
        first = source.frame(TOPIC)
        in_time(lambda: log.append([first]))
        server.process.freeze()
        try:
            before = time.monotonic()
            with pytest.raises(durable_log.LogUnavailable):
                log.append([source.again(TOPIC, 2, 1)])
            assert time.monotonic() - before < 60
        finally:
            server.process.thaw()
        # Whether that append happened is not known; to append again is safe either way.
        in_time(lambda: log.append([source.again(TOPIC, 2, 1)]))
        assert in_time(lambda: numbers(log, source.guid, TOPIC)) == [1, 2]


@pytest.mark.parametrize("is_killed", [False, True], ids=["emptied", "lost"])
def test_a_server_without_its_data_is_not_taken_for_the_same_log(server: LogServer, is_killed: bool) -> None:
    source = Source()
    with opened(server.url) as log:
        log.append([source.frame(TOPIC, 3)])
        if is_killed:
            server.process.restart_empty()
        else:
            server.empty()
        calls: list[Callable[[], object]] = [
            lambda: log.append([source.frame(TOPIC)]), log.state, lambda: log.read(0, 3), lambda: log.streams(0),
            lambda: log.wait({0: 0}, timeout_s=10), lambda: log.trim(0, 5), lambda: log.get_record("a"),
            lambda: log.put_records([("a", b"", None)]), lambda: log.list_records(""), log.segments,
            lambda: log.note_missing([(source.guid, TOPIC, 9)]), lambda: log.find(0, 0),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(
                durable_log.LogReplaced, match=f"the log {log.identity} was opened .* there is none now"
            ):
                call()
        with opened(server.url) as other:
            assert other.identity != log.identity
            for call in calls:
                with pytest.raises(durable_log.LogReplaced) as caught:
                    call()
                assert (caught.value.opened, caught.value.found) == (log.identity, other.identity)
            assert [state.end for state in other.state()] == [0, 0]
            assert other.list_records("") == []


def test_a_server_that_comes_back_without_its_data_does_not_get_the_segments(
    server: LogServer, tmp_path: pathlib.Path
) -> None:
    url = f"{server.url}&segment_directory={tmp_path}"
    with opened(url) as log:
        log.append([Source().frame(TOPIC, 50)])
        for shard in range(log.shards):
            Sealer(log).seal(shard)
        before, identity = set(tmp_path.rglob("*.parquet")), log.identity
        server.process.restart_empty()
        with pytest.raises(durable_log.LogReplaced), Maintainer(log) as maintainer:
            maintainer.run_once()
    with pytest.raises(durable_log.SegmentsRefused, match="heliograph log repair") as caught:
        durable_log.open(url)
    assert caught.value.found == identity
    assert identity in str(caught.value)
    assert caught.value.identity in str(caught.value)
    assert set(tmp_path.rglob("*.parquet")) == before != set()
