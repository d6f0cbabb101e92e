"""For how long somebody looks after a thread that was lent, and which callbacks are left to the dispatcher."""

from __future__ import annotations

import math
import threading

import pytest

from pubsub_api.errors import LimitReached
from pubsub_api.runtime.shared_threads import THREADS, SharedTimer
from pubsub_api.subscribing import inline_dispatch
from pubsub_api.subscribing.inline_dispatch import LENT_MAX_S, MOMENT_PAUSE_S, MOMENT_S, InlineDispatch, LoanWatch


class Clock:
    """Stands in for the clock and the shared timers: ``due`` is when the watch wants to be called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.due = math.inf
        monkeypatch.setattr(inline_dispatch.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(THREADS, "add_timer", lambda _timer: None)
        monkeypatch.setattr(THREADS, "set_timer", self._set)
        monkeypatch.setattr(THREADS, "remove_timer", lambda _timer: None)

    def _set(self, timer: SharedTimer, due: float) -> None:
        self.timer, self.due = timer, due

    def looks_until(self, end: float) -> int:
        """Let the time pass; returns how often the watch has looked."""
        looks = 0
        while self.due <= end:
            self.now = self.due
            self.due = self.timer.tick()
            looks += 1
        self.now = end
        return looks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def watch(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> LoanWatch:
    monkeypatch.setattr(inline_dispatch, "LOANS", LoanWatch())
    return inline_dispatch.LOANS


class CountedLooks(InlineDispatch):
    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self.looks = 0

    def look_after(self, now: float) -> bool:
        self.looks += 1
        return super().look_after(now)


def test_a_lone_event_is_not_looked_after_for_long(clock: Clock, watch: LoanWatch) -> None:
    """A process that gets an event now and then would else wake up forty times for each of them."""
    call_for(CountedLooks(), clock.now, 0.0)
    assert 1 <= clock.looks_until(200.0) <= 6
    assert not watch.is_watching


def test_many_subscribers_are_looked_after_together(clock: Clock, watch: LoanWatch) -> None:
    lent = [CountedLooks(), CountedLooks()]
    relieved: list[int] = []
    for number, inline in enumerate(lent):
        assert inline.begin(lambda number=number: relieved.append(number), clock.now)  # type: ignore[misc]
    looks = clock.looks_until(clock.now + 10 * LENT_MAX_S)
    assert looks in (4, 5), "one that was relieved is not looked after for long"
    assert [inline.looks for inline in lent] == [looks, looks]
    assert sorted(relieved) == [0, 1], "each once"
    assert not watch.is_watching


def test_a_thread_that_cannot_be_replaced_is_looked_after_until_it_comes_back(clock: Clock, watch: LoanWatch) -> None:
    inline = CountedLooks()

    def refuse() -> None:
        raise LimitReached("no further thread")

    assert inline.begin(refuse, clock.now)
    assert clock.looks_until(clock.now + 10 * LENT_MAX_S) in (9, 10, 11)
    assert watch.is_watching
    assert not inline.end(clock.now)
    clock.looks_until(200.0)
    assert not watch.is_watching


def test_a_loan_that_begins_when_the_watch_has_ended_is_looked_after(clock: Clock, watch: LoanWatch) -> None:
    inline = CountedLooks()
    call_for(inline, clock.now, 0.0)
    clock.looks_until(200.0)
    call_for(inline, clock.now, 0.0)
    assert watch.is_watching
    assert clock.due <= clock.now + LENT_MAX_S


def test_nobody_looks_where_no_timer_can_be_had_and_the_next_loan_tries_again(
    clock: Clock, watch: LoanWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_timer: SharedTimer) -> None:
        raise LimitReached("no further thread")

    add_timer = THREADS.add_timer
    monkeypatch.setattr(THREADS, "add_timer", refuse)
    inline = CountedLooks()
    call_for(inline, clock.now, 0.0)
    assert not watch.is_watching
    monkeypatch.setattr(THREADS, "add_timer", add_timer)
    call_for(inline, clock.now, 0.0)
    assert watch.is_watching


def call_for(inline: InlineDispatch, now: float, seconds: float) -> bool:
    """Whether the thread was lent, for that long."""
    if not inline.begin(lambda: None, now):
        return False
    inline.end(now + seconds)
    return True


def test_a_callback_that_usually_takes_more_than_a_moment_is_left_to_the_dispatcher() -> None:
    inline = InlineDispatch(threading.Lock())
    now = 100.0
    while call_for(inline, now, 3 * MOMENT_S):
        now += 4 * MOMENT_S
        assert now < 101.0, "it is always lent"
    now += MOMENT_PAUSE_S
    assert call_for(inline, now, 3 * MOMENT_S), "it is tried again later"
    assert not call_for(inline, now + 4 * MOMENT_S, 3 * MOMENT_S), "and once is enough then"


def test_a_callback_that_has_become_brief_gets_the_thread_again() -> None:
    inline = InlineDispatch(threading.Lock())
    for number in range(100):
        call_for(inline, 100.0 + number, 10 * MOMENT_S)
    lent = [call_for(inline, 300.0 + number * MOMENT_PAUSE_S / 2, 0.0) for number in range(100)]
    assert not all(lent[:10])
    assert all(lent[50:])


def test_a_callback_that_takes_longer_once_keeps_the_thread() -> None:
    inline = InlineDispatch(threading.Lock())
    took = [0.0] * 20
    took[5] = 4 * MOMENT_S
    assert all(call_for(inline, 100.0 + number, seconds) for number, seconds in enumerate(took))
