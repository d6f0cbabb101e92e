"""Opening, closing, and opening again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from durable_log.log_api import LogApi
from durable_log.testing.log_conformance.appending import SHARD, TOPIC
from durable_log.testing.log_conformance.base import SHARDS, LogConformanceBase, NewUrl
from durable_log.testing.sources import Source, check_consistent, read_frames
from pubsub_api.errors import Closed, InvalidConfig
from pubsub_api.testing.receivers import WAIT_S, eventually, in_threads

CALLS: dict[str, Callable[[LogApi], object]] = {
    "append": lambda log: log.append([Source().frame(TOPIC)]),
    "append nothing": lambda log: log.append([]),
    "read": lambda log: log.read(0, 0),
    "read_stream": lambda log: log.read_stream(bytes(16), TOPIC, 1, 2),
    "state": lambda log: log.state(),
    "streams": lambda log: log.streams(0),
    "find": lambda log: log.find(0, 0),
    "wait": lambda log: log.wait({0: 0}, timeout_s=60),
    "trim": lambda log: log.trim(0, 5),
    "segments": lambda log: log.segments(),
    "get_record": lambda log: log.get_record("a"),
    "put_records": lambda log: log.put_records([("a", b"", None)]),
    "list_records": lambda log: log.list_records(""),
}


class LifecycleConformance(LogConformanceBase):
    def test_initialize_again_changes_nothing(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC, 3)])
        before = log.state()
        log.initialize()
        assert log.state() == before

    def test_opening_again_finds_everything(self, log_url: str) -> None:
        source = Source()
        sent = [source.frame(TOPIC, 3), source.frame(TOPIC, 2, lose=4)]
        with contextlib.closing(self.open_log(log_url)) as log:
            log.append(sent)
            [version] = log.put_records([("a", b"1", 0)])
            state, streams = log.state(), log.streams(SHARD)
        with contextlib.closing(self.open_log(log_url)) as log:
            assert (log.state(), log.streams(SHARD)) == (state, streams)
            assert [one.frame for one in read_frames(log, SHARD)] == sent
            assert log.append(sent).events == 0
            assert log.put_records([("a", b"2", version)])[0] > version
            check_consistent(log)

    def test_two_objects_of_one_log_share_everything(self, log: LogApi, log_url: str) -> None:
        source = Source()
        with contextlib.closing(self.open_log(log_url)) as other:
            log.append([source.frame(TOPIC)])
            other.append([source.frame(TOPIC)])
            assert other.state() == log.state()
        assert log.state()[SHARD].end == 2

    def test_a_log_has_an_identity_that_stays(self, new_url: NewUrl) -> None:
        identities = []
        for url in (new_url(), new_url()):
            with contextlib.closing(self.open_log(url)) as log:
                identity = log.identity
                log.append([Source().frame(TOPIC)])
                log.initialize()
                assert log.identity == identity
            with contextlib.closing(self.open_log(url)) as log:
                assert log.identity == identity
            identities.append(identity)
        assert all(identities)
        assert len(set(identities)) == 2

    def test_two_logs_know_nothing_of_each_other(self, new_url: NewUrl) -> None:
        with contextlib.closing(self.open_log(new_url())) as one, contextlib.closing(self.open_log(new_url())) as other:
            one.append([Source().frame(TOPIC)])
            one.put_records([("a", b"", 0)])
            assert other.state()[SHARD].end == 0
            assert other.list_records("") == []
            assert other.wait({SHARD: 0}, timeout_s=0.05) is False

    def test_the_number_of_shards_is_fixed(self, log: LogApi, log_url: str) -> None:
        with pytest.raises(InvalidConfig, match=f"{SHARDS} shards, not {SHARDS + 1}"):
            self.open_log(log_url.replace(f"shards={SHARDS}", f"shards={SHARDS + 1}"))
        with contextlib.closing(self.open_log(log_url.replace(f"shards={SHARDS}&", ""))) as other:
            assert other.shards == log.shards == SHARDS

    def test_close_is_idempotent(self, log: LogApi) -> None:
        log.append([Source().frame(TOPIC)])
        in_threads(4, lambda _: log.close())
        log.close()

    @pytest.mark.parametrize("name", CALLS)
    def test_a_closed_log_refuses(self, log: LogApi, name: str) -> None:
        log.close()
        with pytest.raises(Closed):
            CALLS[name](log)

    def test_close_ends_a_wait(self, log: LogApi) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, {0: 0}, timeout_s=10 * WAIT_S)
            eventually(waiting.running, "the thread runs")
            log.close()
            with contextlib.suppress(Closed):  # closed before the wait began
                assert waiting.result(WAIT_S) is False

    def test_no_thread_is_left_behind(self, log_url: str) -> None:
        with contextlib.closing(self.open_log(log_url)):
            pass  # what a library starts once and keeps for the process is started now
        before = set(threading.enumerate())
        with contextlib.closing(self.open_log(log_url)) as log:
            in_threads(4, lambda _: log.append([Source().frame(TOPIC)]))
            log.wait({SHARD: 4}, timeout_s=0.01)
        eventually(lambda: set(threading.enumerate()) <= before, "the threads of the log end")
