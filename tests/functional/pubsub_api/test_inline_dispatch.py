"""Who calls the user, on every driver: one call at a time, in order, and a call that lasts stops nothing but itself."""

from __future__ import annotations

import functools
import random
import threading

import pytest

from pubsub_api import Event, Publisher, Subscriber
from tests.functional.conftest import Bus, event
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

LENDERS = ("zmq", "zenoh", "redis")
DISPATCHER = "heliograph-shared"
WAIT_S = 60.0


class Watcher:
    """A callback that notes what it gets and where, and stands still at one event until it may go on."""

    def __init__(self, stops_at: int = 0) -> None:
        self.versions: list[int] = []
        self.threads: list[str] = []
        self.overlaps = 0
        self.stopped = threading.Event()
        self.may_go_on = threading.Event()
        self._stops_at = stops_at
        self._is_called = threading.Lock()

    def on_event(self, got: Event) -> None:
        if not self._is_called.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            self.versions.append(got.version)
            self.threads.append(threading.current_thread().name)
            if self._stops_at and got.version >= self._stops_at and not self.may_go_on.is_set():
                self.stopped.set()
                self.may_go_on.wait(WAIT_S)
        finally:
            self._is_called.release()

    def has(self, count: int) -> bool:
        return len(self.versions) == count

    @property
    def is_lent(self) -> bool:
        return bool(self.threads) and self.threads[-1] != DISPATCHER


def open_ends(bus: Bus, watcher: Watcher) -> tuple[Publisher, Subscriber]:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["tenant-7/#"], watcher.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=60)
    return publisher, subscriber


def send_until_lent(bus: Bus, publisher: Publisher, watcher: Watcher) -> int:
    """Send lone events until one is told on the driver's own thread, where the driver lends it; returns how many."""
    sent = 0

    def is_lent() -> bool:
        nonlocal sent
        if len(watcher.versions) == sent and not (sent and (watcher.is_lent or bus.driver not in LENDERS)):
            sent += 1
            publisher.send_event(event(sent))
        return len(watcher.versions) == sent and (watcher.is_lent or bus.driver not in LENDERS)

    wait_until(is_lent, WAIT_S, "a lone event that is told on the thread that received it")
    return sent


def test_a_callback_that_lasts_stops_nothing_but_itself(bus: Bus) -> None:
    watcher = Watcher()
    publisher, subscriber = open_ends(bus, watcher)
    sent = send_until_lent(bus, publisher, watcher)
    watcher._stops_at = sent + 1
    publisher.send_event(event(sent + 1))
    assert watcher.stopped.wait(WAIT_S)
    for number in range(sent + 2, sent + 102):
        publisher.send_event(event(number))
    wait_until(lambda: subscriber.statistics().delivered == sent + 101, WAIT_S, "frames to be received meanwhile")
    assert watcher.versions == list(range(1, sent + 2))
    watcher.may_go_on.set()
    wait_until(lambda: len(watcher.versions) == sent + 101, WAIT_S, "the callbacks to be made up for")
    assert watcher.versions == list(range(1, sent + 102))
    assert watcher.overlaps == 0
    statistics = subscriber.statistics()
    assert (statistics.repair.gaps, statistics.discarded, statistics.lag) == (0, 0, 0)
    assert statistics.intake.relieved <= 1
    if watcher.threads[sent] != DISPATCHER:
        assert statistics.intake.relieved == 1
        assert watcher.threads[-1] == DISPATCHER, "who had to wait once is called by the dispatcher for a while"


def test_a_callback_that_lasts_while_no_thread_can_be_started_ends_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    watcher = Watcher()
    publisher, subscriber = open_ends(bus, watcher)
    sent = send_until_lent(bus, publisher, watcher)
    start, refused = threading.Thread.start, []

    def start_none(thread: threading.Thread) -> None:
        if watcher.may_go_on.is_set():
            start(thread)
        else:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")  # as the interpreter says it

    monkeypatch.setattr(threading.Thread, "start", start_none)
    watcher._stops_at = sent + 1
    publisher.send_event(event(sent + 1))
    assert watcher.stopped.wait(WAIT_S)
    if watcher.is_lent:
        wait_until(lambda: len(refused) >= 2, WAIT_S, "attempts to go on in another thread")
    watcher.may_go_on.set()
    publisher.send_event(event(sent + 2))
    wait_until(lambda: watcher.versions == list(range(1, sent + 3)), WAIT_S, "the next event")
    if bus.driver == "redis":
        with redis_server.client() as client:
            client.client_kill_filter(_type="pubsub")
        wait_until(lambda: subscriber.statistics().driver["link_failures"] >= 1, WAIT_S, "the link to be lost")
        wait_until(lambda: subscriber.statistics().links_up == 1, WAIT_S, "the link to be there again")
    subscriber.close()
    assert subscriber.statistics().intake.relieved == 0


def test_a_subscriber_can_be_closed_from_its_callback(bus: Bus) -> None:
    watcher = Watcher()
    publisher, subscriber = open_ends(bus, watcher)
    sent = send_until_lent(bus, publisher, watcher)
    is_closed = threading.Event()

    def close(_got: Event) -> None:
        subscriber.close()
        is_closed.set()

    subscriber._dispatcher.on_events = lambda events: close(events[0])
    publisher.send_event(event(sent + 1))
    assert is_closed.wait(WAIT_S)


@pytest.mark.parametrize("is_relieved", [False, True])
def test_closing_waits_for_the_callback_and_ends_every_thread(bus: Bus, is_relieved: bool) -> None:
    before = set(threading.enumerate())
    watcher = Watcher()
    publisher, subscriber = open_ends(bus, watcher)
    sent = send_until_lent(bus, publisher, watcher)
    watcher._stops_at = sent + 1
    publisher.send_event(event(sent + 1))
    assert watcher.stopped.wait(WAIT_S)
    if is_relieved and watcher.is_lent:
        wait_until(lambda: subscriber.statistics().intake.relieved == 1, WAIT_S, "another thread to go on")
    closer = threading.Thread(target=subscriber.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive(), "closing must wait for the callback"
    watcher.may_go_on.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    bus.close()
    wait_until(lambda: set(threading.enumerate()) <= before, WAIT_S, "every thread to end")
    assert watcher.versions == list(range(1, sent + 2))


def test_lone_events_and_floods_in_turn_keep_their_order(bus: Bus) -> None:
    watcher = Watcher()
    publisher, subscriber = open_ends(bus, watcher)
    dice = random.Random(7)
    sent = 0
    for _ in range(60):
        for _ in range(dice.choice((1, 1, 1, 2, 3, 50, 700))):
            sent += 1
            publisher.send_event(event(sent))
        if dice.random() < 0.7:
            wait_until(functools.partial(watcher.has, sent), WAIT_S, "all that was sent so far")
    publisher.flush(timeout_s=WAIT_S)
    wait_until(lambda: len(watcher.versions) == sent, WAIT_S, "every event")
    assert watcher.versions == list(range(1, sent + 1))
    assert watcher.overlaps == 0
    assert subscriber.statistics().received == sent
