"""The scheduler of resyncs: joins, delays, keeps a distance, and never forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core.receiving.resync_requests import (
    LOST_RANGES_MAX,
    NEVER,
    TOPICS_MAX,
    LostRange,
    Reason,
    ResyncScheduler,
)


def scheduler(jitter: float = 0.5) -> ResyncScheduler:
    return ResyncScheduler(jitter_s=4.0, interval_min_s=10.0, jitter=lambda: jitter)


def lost(number: int) -> LostRange:
    return LostRange("north", "00" * 16, "a", number, number)


def test_nothing_is_emitted_unasked() -> None:
    one = scheduler()
    assert one.emit(1e9, ["#"]) is None
    assert one.next_deadline() == NEVER
    assert not one.is_waiting


def test_a_request_after_loss_is_delayed_by_jitter() -> None:
    one = scheduler()
    one.request(Reason.LOSS, ["a"], 100.0, [lost(3)])
    assert one.is_waiting
    assert one.next_deadline() == 102.0
    assert one.emit(101.9, ["#"]) is None
    resync = one.emit(102.0, ["#"])
    assert resync is not None
    assert (resync.reason, resync.topics, resync.generation) == (Reason.LOSS, ("a",), 1)
    assert resync.lost == (lost(3),)
    assert one.emit(103.0, ["#"]) is None
    assert not one.is_waiting


def test_what_a_user_waits_for_has_no_jitter() -> None:
    for reason in (Reason.INITIAL, Reason.SUBSCRIBED):
        one = scheduler()
        one.request(reason, ["a"], 100.0)
        assert one.next_deadline() == 100.0


def test_requests_are_joined_and_the_most_telling_reason_is_reported() -> None:
    one = scheduler()
    one.request(Reason.SUBSCRIBED, ["a"], 100.0)
    one.request(Reason.SILENCE, ["b", "a"], 100.0)
    one.request(Reason.LOSS, ["c"], 100.0)
    resync = one.emit(100.0, ["#"])
    assert resync is not None
    assert resync.reason is Reason.LOSS
    assert resync.reasons == {Reason.SUBSCRIBED, Reason.SILENCE, Reason.LOSS}
    assert resync.topics == ("a", "b", "c")


def test_a_later_request_does_not_put_off_the_first() -> None:
    one = scheduler()
    one.request(Reason.LOSS, ["a"], 100.0)
    one.request(Reason.LOSS, ["b"], 101.0)
    assert one.next_deadline() == 102.0


def test_two_emissions_keep_a_distance_and_none_is_dropped() -> None:
    one = scheduler(jitter=0.0)
    one.request(Reason.LOSS, ["a"], 100.0)
    assert one.emit(100.0, ["#"]) is not None
    for reason in (Reason.LOSS, Reason.SUBSCRIBED):
        one.request(reason, [reason.value], 101.0)
    assert one.next_deadline() == 110.0
    assert one.emit(109.9, ["#"]) is None
    resync = one.emit(110.0, ["#"])
    assert resync is not None
    assert resync.topics == ("loss", "subscribed")
    assert resync.generation == 2


def test_while_it_is_blocked_it_waits() -> None:
    one = scheduler(jitter=0.0)
    one.is_blocked = True
    one.request(Reason.SLOW_CONSUMER, ["a"], 100.0)
    assert one.next_deadline() == NEVER
    assert one.emit(1000.0, ["#"]) is None
    one.is_blocked = False
    assert one.emit(1000.0, ["#"]) is not None


def test_too_many_topics_become_the_filters() -> None:
    one = scheduler()
    one.request(Reason.INITIAL, [f"t/{number}" for number in range(TOPICS_MAX)], 0.0)
    resync = one.emit(0.0, ["t/#"])
    assert resync is not None
    assert len(resync.topics) == TOPICS_MAX
    one.request(Reason.INITIAL, [f"t/{number}" for number in range(TOPICS_MAX + 1)], 20.0)
    resync = one.emit(20.0, ["t/#", "b"])
    assert resync is not None
    assert resync.topics == ("t/#", "b")


def test_lost_ranges_are_bounded() -> None:
    one = scheduler()
    for start in range(0, 300, 60):
        one.request(Reason.LOSS, ["a"], 0.0, [lost(2 * number) for number in range(start, start + 60)])
    resync = one.emit(10.0, ["#"])
    assert resync is not None
    assert [item.first for item in resync.lost] == list(range(0, 2 * LOST_RANGES_MAX, 2))
    assert str(resync.lost[7]) == "a 14..14 of north (00000000)"


def test_lost_ranges_that_touch_are_told_as_one() -> None:
    one = scheduler()
    for number in (1, 2, 3, 5, 6):
        one.request(Reason.SLOW_CONSUMER, ["a"], 0.0, [lost(number)])
    resync = one.emit(10.0, ["#"])
    assert resync is not None
    assert [(item.first, item.last) for item in resync.lost] == [(1, 3), (5, 6)]


@given(st.lists(st.tuples(st.sampled_from(("request", "emit", "block", "free")), st.sampled_from(Reason),
                          st.floats(0.0, 8.0)), max_size=60))  # fmt: skip
def test_every_request_comes_out_exactly_once(steps: list[tuple[str, Reason, float]]) -> None:
    one = scheduler()
    now, waiting, emitted_at = 100.0, set[str](), -1e9
    for number, (step, reason, pause) in enumerate(steps):
        now += pause
        if step == "request":
            one.request(reason, [f"t/{number}"], now)
            waiting.add(f"t/{number}")
        elif step == "emit":
            resync = one.emit(now, ["#"])
            if resync is not None:
                assert set(resync.topics) == waiting
                assert now - emitted_at >= 10.0
                assert not one.is_blocked
                waiting, emitted_at = set(), now
        else:
            one.is_blocked = step == "block"
    one.is_blocked = False
    assert one.is_waiting is bool(waiting)
    final = one.emit(now + 20.0, ["#"])
    assert set(final.topics if final else ()) == waiting
