"""For how long somebody looks after a thread that was lent, and which callbacks are left to the dispatcher."""

from __future__ import annotations

import math
import threading

import pytest

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


def test_a_lone_event_is_not_looked_after_for_long(clock: Clock) -> None:
    """A process that gets an event now and then would else wake up forty times for each of them."""
    watch, inline = LoanWatch(), InlineDispatch()
    watch.begin(inline, threading.Lock(), clock.now)
    watch.end(inline)
    assert 1 <= clock.looks_until(200.0) <= 6
    assert not watch.is_watching


class CountedLooks(InlineDispatch):
    looks = 0

    def look_after(self, now: float) -> None:
        self.looks += 1
        super().look_after(now)


def test_many_subscribers_are_looked_after_together(clock: Clock) -> None:
    watch, lent = LoanWatch(), [CountedLooks(), CountedLooks()]
    for inline in lent:
        watch.begin(inline, threading.Lock(), clock.now)
    looks = clock.looks_until(clock.now + 10 * LENT_MAX_S)
    assert looks in (9, 10, 11)
    assert [inline.looks for inline in lent] == [looks, looks]
    watch.end(lent[0])
    more = clock.looks_until(clock.now + 10 * LENT_MAX_S)
    assert more in (9, 10, 11), "one is still away"
    assert [inline.looks for inline in lent] == [looks, looks + more]


def test_a_loan_that_begins_when_the_watch_ends_is_looked_after(clock: Clock) -> None:
    watch, inline = LoanWatch(), InlineDispatch()
    watch.begin(inline, threading.Lock(), clock.now)
    watch.end(inline)
    clock.looks_until(200.0)
    watch.begin(inline, threading.Lock(), clock.now)
    assert watch.is_watching
    assert clock.due <= clock.now + LENT_MAX_S


def call_for(inline: InlineDispatch, now: float, seconds: float) -> bool:
    """Whether the thread was lent, for that long."""
    if not inline.begin(lambda: None, now):
        return False
    inline.end(now + seconds)
    return True


def test_a_callback_that_usually_takes_more_than_a_moment_is_left_to_the_dispatcher() -> None:
    inline = InlineDispatch()
    now = 100.0
    while call_for(inline, now, 3 * MOMENT_S):
        now += 4 * MOMENT_S
        assert now < 101.0, "it is always lent"
    now += MOMENT_PAUSE_S
    assert call_for(inline, now, 3 * MOMENT_S), "it is tried again later"
    assert not call_for(inline, now + 4 * MOMENT_S, 3 * MOMENT_S), "and once is enough then"


def test_a_callback_that_has_become_brief_gets_the_thread_again() -> None:
    inline = InlineDispatch()
    for number in range(100):
        call_for(inline, 100.0 + number, 10 * MOMENT_S)
    lent = [call_for(inline, 300.0 + number * MOMENT_PAUSE_S / 2, 0.0) for number in range(100)]
    assert not all(lent[:10])
    assert all(lent[50:])


def test_a_callback_that_takes_longer_once_keeps_the_thread() -> None:
    inline = InlineDispatch()
    took = [0.0] * 20
    took[5] = 4 * MOMENT_S
    assert all(call_for(inline, 100.0 + number, seconds) for number, seconds in enumerate(took))
