"""For how long somebody looks after a thread that was lent: not much longer than it is away."""

from __future__ import annotations

from pubsub_api.subscribing.inline_dispatch import LENT_MAX_S, InlineDispatch


def lend(inline: InlineDispatch, now: float) -> None:
    assert inline.begin(lambda: None, now)
    inline.is_watched = True


def test_a_lone_event_is_not_looked_after_for_long() -> None:
    """A subscriber that gets an event now and then would else wake up forty times for each of them."""
    inline = InlineDispatch()
    lend(inline, 100.0)
    inline.end()
    looks = 0
    while inline.is_watched:
        looks += 1
        inline.look_after(100.0 + looks * LENT_MAX_S)
    assert looks <= 5


def test_events_that_follow_each_other_find_it_watched() -> None:
    inline = InlineDispatch()
    for number in range(10):
        now = 100.0 + number * 2 * LENT_MAX_S
        lend(inline, now)
        inline.end()
        inline.look_after(now + LENT_MAX_S)
        assert inline.is_watched
