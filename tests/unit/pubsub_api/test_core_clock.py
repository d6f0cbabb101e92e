"""The hybrid clock: never backwards, never the same twice, later than what was observed, not led astray."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core.clock import HybridClock

SKEW = 1000


def test_it_follows_the_wall_clock() -> None:
    clock = HybridClock(SKEW)
    assert [clock.tick(wall) for wall in (10, 20, 30)] == [10, 20, 30]


def test_it_goes_on_when_the_wall_clock_stands_or_jumps_back() -> None:
    clock = HybridClock(SKEW)
    assert [clock.tick(wall) for wall in (10, 10, 5, 0, 12, 20)] == [10, 11, 12, 13, 14, 20]


def test_what_was_observed_is_earlier_than_the_next_tick() -> None:
    clock = HybridClock(SKEW)
    clock.observe(500, 10)
    assert clock.tick(10) == 501
    clock.observe(100, 10)
    assert clock.tick(10) == 502


def test_a_peer_too_far_in_the_future_is_not_believed() -> None:
    clock = HybridClock(SKEW)
    clock.observe(10 + SKEW, 10)
    assert clock.rejected == 0
    assert clock.tick(10) == 11 + SKEW
    clock.observe(10 + 10 * SKEW, 10)
    assert clock.rejected == 1
    assert clock.tick(10) == 12 + SKEW


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10_000), st.integers(0, 10_000)), max_size=50))
def test_ticks_grow_and_stay_near_the_wall_clock(steps: list[tuple[bool, int, int]]) -> None:
    clock = HybridClock(SKEW)
    last = highest_wall = believed = 0
    for number, (is_tick, wall, remote) in enumerate(steps, 1):
        highest_wall = max(highest_wall, wall)
        if is_tick:
            stamp = clock.tick(wall)
            assert stamp > last
            assert stamp > believed
            assert stamp <= highest_wall + SKEW + number
            last = stamp
        else:
            clock.observe(remote, wall)
            believed = max(believed, remote) if remote - wall <= SKEW else believed
