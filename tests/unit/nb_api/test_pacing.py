"""How often changes are published: lone ones at once, those of a flood together."""

from __future__ import annotations

from nb_api.writing.pacing import BURST, PAUSE_S, WORTH_IT, Pace


def test_changes_that_are_a_pause_apart_never_wait() -> None:
    pace = Pace()
    for number in range(10 * BURST):
        now = 1000.0 + number * PAUSE_S * 1.01
        assert pace.is_due(1, now)
        assert pace.due <= now
        pace.published(now)


def test_a_writer_that_was_held_up_catches_up_at_once_and_then_waits() -> None:
    pace = Pace()
    for _ in range(BURST):
        assert pace.is_due(1, 1000.0)
        pace.published(1000.0)
    assert not pace.is_due(1, 1000.0)
    assert 1000.0 < pace.due <= 1000.0 + 1.01 * PAUSE_S
    assert pace.is_due(1, pace.due)


def test_idle_time_is_not_saved_up() -> None:
    pace = Pace()
    pace.published(0.0)
    sent = 0
    while pace.is_due(1, 1000.0):
        pace.published(1000.0)
        sent += 1
    assert sent == BURST


def test_many_changes_do_not_wait() -> None:
    pace = Pace()
    while pace.is_due(1, 1000.0):
        pace.published(1000.0)
    assert not pace.is_due(WORTH_IT - 1, 1000.0)
    assert pace.is_due(WORTH_IT, 1000.0)
