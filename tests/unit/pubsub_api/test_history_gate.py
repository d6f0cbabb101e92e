"""The gate between history and live events, with a source that tests hold in their hands."""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Iterator, Sequence

import pytest

import pubsub_api
from pubsub_api import Event, HistoryOutcome, HistorySource, Mismatch
from pubsub_api import session as sessions
from pubsub_api.errors import Closed
from pubsub_api.subscribing.history import OnChange, OnPage
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.waiting import wait_until

TIMEOUT_S = 30.0

Step = Sequence[Event] | HistoryOutcome | Exception


def event(key: str, value: int, timestamp: int) -> Event:
    return Event(topic="t", table="x", key=key, action="set", value=value, timestamp=timestamp)


class Script(HistorySource):
    """Reads what the test puts in, step by step: pages, errors, and then an outcome."""

    def __init__(self) -> None:
        self.steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self.topics: list[Sequence[str]] = []
        self.on_change: OnChange | None = None

    @property
    def asks_publishers(self) -> bool:
        return False

    def read(self, topics: Sequence[str], on_page: OnPage, *, timeout_s: float) -> HistoryOutcome:
        self.topics.append(list(topics))
        while True:
            step = self.steps.get(timeout=TIMEOUT_S)
            if isinstance(step, HistoryOutcome):
                return step
            if isinstance(step, Exception):
                raise step
            on_page(step)

    def watch(self, on_change: OnChange) -> None:
        self.on_change = on_change

    def mismatches(self) -> Sequence[Mismatch]:
        return []

    def close(self) -> None:
        self.steps.put(HistoryOutcome.TIMED_OUT)


class Rig:
    def __init__(self, **options: object) -> None:
        self.session = pubsub_api.open(conf=fast_conf(f"memory://{uuid.uuid4().hex}", **options))
        self.publisher = self.session.publisher()
        self.source = Script()
        self.seen: list[Event] = []
        self.told: list[pubsub_api.Resync] = []
        self.subscriber = self.session.subscriber(
            ["t"], self.seen.append, on_resync=self.told.append, past=self.source,
        )  # fmt: skip
        self.subscriber.wait_ready(timeout_s=TIMEOUT_S)

    def say(self, *steps: Step) -> None:
        for step in steps:
            self.source.steps.put(step)

    def send(self, key: str, value: int) -> None:
        """A live event, which has arrived when this returns."""
        before = self.subscriber.statistics().delivered
        self.publisher.send_event(Event(topic="t", table="x", key=key, action="set", value=value))
        wait_until(lambda: self.subscriber.statistics().delivered > before, TIMEOUT_S, "the live event to arrive")

    @property
    def values(self) -> list[int]:
        return [one.value for one in self.seen]

    def wait(self, *values: int) -> None:
        wait_until(lambda: self.values == list(values), TIMEOUT_S, f"{values}, not {self.values}")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.session.close()


def test_live_events_wait_for_history_and_come_once(rig: Rig) -> None:
    rig.send("k", 10)
    live = rig.subscriber.statistics()
    assert live.delivered == 1
    assert rig.seen == []
    rig.say([event("k", 1, 1), event("k", 2, 2)], [event("k", 2, 2), event("j", 3, 3)], HistoryOutcome.COMPLETE)
    assert rig.subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    rig.wait(1, 2, 3, 10)
    statistics = rig.subscriber.statistics()
    assert (statistics.history.events, statistics.history.duplicates, statistics.history.reads) == (3, 1, 1)
    assert rig.source.topics == [["t"]]


def test_an_old_event_does_not_follow_a_newer_one_of_its_object(rig: Rig) -> None:
    rig.say([event("k", 1, 2**62)], HistoryOutcome.COMPLETE)
    rig.wait(1)
    rig.send("k", 2)  # its publisher's clock is behind
    rig.send("j", 3)
    rig.wait(1, 3)


def test_a_wait_that_times_out_may_be_repeated(rig: Rig) -> None:
    rig.say([event("k", 1, 1)], HistoryOutcome.TIMED_OUT)
    rig.wait(1)
    assert rig.subscriber.wait_for_historical_data(0.01) is HistoryOutcome.TIMED_OUT
    rig.say([event("k", 1, 1), event("j", 2, 2)], HistoryOutcome.COMPLETE)
    assert rig.subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert rig.values == [1, 2]


def test_a_source_that_fails_is_tried_again_and_counted(rig: Rig) -> None:
    rig.say(RuntimeError("no"), [event("k", 1, 1)], HistoryOutcome.COMPLETE)
    assert rig.subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert rig.values == [1]
    assert rig.subscriber.statistics().history.errors == 1


def test_live_events_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HISTORY_HOLD_S", 0.01)
    rig = Rig()
    rig.send("k", 10)
    rig.say(HistoryOutcome.TIMED_OUT)
    rig.wait(10)
    rig.say([event("k", 1, 1), event("j", 2, 2)], HistoryOutcome.COMPLETE)  # what is older is not wanted any more
    rig.wait(10, 2)
    rig.session.close()


def test_what_joining_brought_is_merged(rig: Rig) -> None:
    rig.say([event("k", 1, 1)], HistoryOutcome.COMPLETE)
    rig.wait(1)
    assert rig.source.on_change is not None
    rig.source.on_change(False)
    rig.say([event("k", 1, 1), event("k", 2, 2)], HistoryOutcome.COMPLETE)
    rig.wait(1, 2)
    assert [one.reason for one in rig.told] == [pubsub_api.Reason.INITIAL]


def test_what_replaced_the_past_is_told_and_delivered_whole(rig: Rig) -> None:
    rig.say([event("k", 2, 2), event("j", 3, 3)], HistoryOutcome.COMPLETE)
    rig.wait(2, 3)
    assert rig.source.on_change is not None
    rig.source.on_change(True)
    wait_until(lambda: len(rig.told) == 2, TIMEOUT_S, "the resync")
    assert rig.told[-1].reason is pubsub_api.Reason.HISTORY_REPLACED
    rig.say([event("k", 1, 1)], HistoryOutcome.COMPLETE)  # older than what was delivered, and yet the truth
    rig.wait(2, 3, 1)


def test_what_is_remembered_of_objects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HISTORY_OBJECTS_MAX", 2)
    rig = Rig()
    rig.say([event(f"k{number}", number, number + 1) for number in range(5)], HistoryOutcome.COMPLETE)
    rig.wait(0, 1, 2, 3, 4)
    assert rig.subscriber.statistics().history.forgotten == 3
    rig.session.close()


def test_closing_lets_go_of_whoever_waits(rig: Rig) -> None:
    rig.send("k", 1)  # its delivery waits for history
    outcomes: list[HistoryOutcome] = []
    begun = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Closed):  # when it comes too late to wait at all
            begun.set()
            outcomes.append(rig.subscriber.wait_for_historical_data(10 * TIMEOUT_S))

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait(TIMEOUT_S)
    rig.subscriber.close()
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    assert outcomes in ([], [HistoryOutcome.TIMED_OUT])
    assert rig.seen == []


@pytest.mark.parametrize("is_live", [False, True])
def test_a_callback_may_close_the_subscriber_while_the_other_way_waits(is_live: bool) -> None:
    """Whichever of the two threads calls, the other may be waiting for it to return."""
    with pubsub_api.open(conf=fast_conf(f"memory://{uuid.uuid4().hex}")) as session:
        source = Script()
        entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()

        def on_event(_event: Event) -> None:
            entered.set()
            go_on.wait(TIMEOUT_S)
            subscriber.close()
            closed.set()

        subscriber = session.subscriber(["t"], on_event, past=source)
        subscriber.wait_ready(timeout_s=TIMEOUT_S)
        publisher = session.publisher()
        if is_live:
            source.steps.put(HistoryOutcome.COMPLETE)
            assert subscriber.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        else:
            source.steps.put([event("k", 1, 1)])
            assert entered.wait(TIMEOUT_S)
        publisher.send_event(Event(topic="t", table="x", key="k", action="set", value=2))
        wait_until(lambda: subscriber.statistics().delivered == 1, TIMEOUT_S, "the live event to arrive")
        assert entered.wait(TIMEOUT_S)
        if is_live:
            assert source.on_change is not None
            source.on_change(False)
            source.steps.put([event("j", 1, 1)])
            wait_until(lambda: len(source.topics) == 2, TIMEOUT_S, "the second read")
        go_on.set()
        assert closed.wait(TIMEOUT_S)


def test_who_iterates_and_stops_is_not_waited_for() -> None:
    with pubsub_api.open(conf=fast_conf(f"memory://{uuid.uuid4().hex}")) as session:
        source = Script()
        subscriber = session.subscriber(["t"], past=source)
        for number in range(200):  # more pages than wait for somebody who does not come
            source.steps.put([event(f"k{number}", number, 1)])
        first = next(iter(subscriber))
        assert first.value == 0
        subscriber.close()
