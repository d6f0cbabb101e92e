"""Several processes on one log: they see each other, and one that is killed takes nothing with it."""

from __future__ import annotations

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

from durable_log.log_api import LogApi
from durable_log.testing.log_child import FRAME_EVENTS, increment, log_process
from durable_log.testing.log_conformance.appending import SHARD, TOPIC
from durable_log.testing.log_conformance.base import LogConformanceBase
from durable_log.testing.sources import Source, check_consistent, numbers
from pubsub_api.testing.conformance.forks import in_forked_child
from pubsub_api.testing.receivers import WAIT_S, in_threads


class ProcessConformance(LogConformanceBase):
    def test_processes_see_each_other_and_store_once(self, log: LogApi, log_url: str) -> None:
        source = Source()
        log.append([source.frame(TOPIC, FRAME_EVENTS)])
        with log_process(log_url) as child:
            child.receive()
            answer = child.ask(append=TOPIC, count=3, guid=source.guid.hex())
        assert answer == {"events": 6, "duplicates": 3}
        assert numbers(log, source.guid, TOPIC) == list(range(1, 10))

    def test_many_can_open_a_new_log_at_once(self, log_url: str) -> None:
        with log_process(log_url) as first, log_process(log_url) as second:

            def open_and_append(_: int) -> int:
                with contextlib.closing(self.open_log(log_url)) as log:
                    return log.append([Source().frame(TOPIC)]).events

            assert in_threads(4, open_and_append) == [1] * 4
            for child in (first, second):
                child.receive()
                child.ask(append=TOPIC, count=1, guid=Source().guid.hex())
        with contextlib.closing(self.open_log(log_url)) as log:
            assert log.state()[SHARD].end == 4 + 2 * FRAME_EVENTS
            check_consistent(log)

    def test_wait_is_woken_by_another_process(self, log: LogApi, log_url: str) -> None:
        with log_process(log_url) as child, ThreadPoolExecutor(1) as pool:
            child.receive()
            waiting = pool.submit(log.wait, {SHARD: 0}, timeout_s=WAIT_S)
            child.ask(append=TOPIC, count=1, guid=Source().guid.hex())
            assert waiting.result(WAIT_S) is True

    def test_recorders_in_several_processes_store_each_event_once(self, log: LogApi, log_url: str) -> None:
        guid = Source().guid
        with log_process(log_url) as first, log_process(log_url) as second, ThreadPoolExecutor(2) as pool:
            for child in (first, second):
                child.receive()
            asked = [pool.submit(child.ask, append=TOPIC, count=50, guid=guid.hex()) for child in (first, second)]
            source = Source(guid)
            mine = sum(log.append([source.frame(TOPIC, FRAME_EVENTS)]).events for _ in range(50))
            assert mine + sum(one.result(2 * WAIT_S)["events"] for one in asked) == 50 * FRAME_EVENTS
        assert numbers(log, guid, TOPIC) == list(range(1, 50 * FRAME_EVENTS + 1))
        check_consistent(log)

    def test_no_increment_is_lost_between_processes(self, log: LogApi, log_url: str) -> None:
        with log_process(log_url) as first, log_process(log_url) as second, ThreadPoolExecutor(2) as pool:
            for child in (first, second):
                child.receive()
            asked = [pool.submit(child.ask, increment="n", count=30) for child in (first, second)]
            for _ in range(30):
                increment(log, "n")
            assert [one.result(2 * WAIT_S) for one in asked] == [{"done": 30}] * 2
        found = log.get_record("n")
        assert found is not None
        assert found.value == b"90"

    def test_what_a_killed_process_was_told_is_stored_is_there(self, log: LogApi, log_url: str) -> None:
        topics = ["a", "b", "c"]
        for kill_after in (1, 8, 40):
            source, told = Source(), dict.fromkeys(topics, 0)
            with log_process(log_url) as child:
                child.receive()
                answer = child.ask(append_without_end=topics, guid=source.guid.hex())
                for _ in range(kill_after):
                    told[answer["topic"]] = answer["last"]
                    answer = child.receive()
                child.kill()
            for topic in topics:
                stored = numbers(log, source.guid, topic)
                assert stored == list(range(1, len(stored) + 1))
                assert len(stored) >= told[topic]
                assert len(stored) % (5 * FRAME_EVENTS) == 0, "an append was stored in part"
        check_consistent(log)

    def test_a_forked_child_works_while_the_parent_goes_on(self, log: LogApi) -> None:
        stop, mine, theirs = threading.Event(), Source(), Source()

        def append_until_stopped() -> int:
            appended = 0
            while not stop.is_set():
                appended += log.append([mine.frame("parent")]).events
            return appended

        with ThreadPoolExecutor(1) as pool:
            appending = pool.submit(append_until_stopped)
            try:
                frames = [theirs.frame("child", 2) for _ in range(4)]
                answers = [in_forked_child(functools.partial(_append, log, frame)) for frame in frames]
            finally:
                stop.set()
            appended = appending.result(WAIT_S)
        assert answers == ["2 events"] * 4
        assert numbers(log, theirs.guid, "child") == list(range(1, 9))
        assert numbers(log, mine.guid, "parent") == list(range(1, appended + 1))
        check_consistent(log)

    def test_a_forked_child_may_close_what_it_inherited(self, log: LogApi) -> None:
        def close() -> str:
            log.close()
            return "closed"

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, {SHARD: 0}, timeout_s=WAIT_S)
            assert in_forked_child(close) == "closed"
            log.append([Source().frame(TOPIC)])
            assert waiting.result(WAIT_S) is True


def _append(log: LogApi, frame: bytes) -> str:
    """What a forked child does with the log of its parent."""
    return f"{log.append([frame]).events} events"
