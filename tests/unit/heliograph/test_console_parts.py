"""Parts of the console that need no server: the guard of the token, charts, and the tail of a topic."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from heliograph.console.acting.audit import KEPT_MAX, AuditJournal
from heliograph.console.acting.guard import TokenGuard
from heliograph.console.live import tail
from heliograph.console.live.rates import SPAN_S, STEP_S, RateHistory, charts
from heliograph.console.live.tail import EventTail, TailRegistry
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.errors import InvalidTopic, LimitReached, UsageError

GUID = os.urandom(frames.GUID_BYTES)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# -- the token


def test_guessing_takes_longer_with_every_guess() -> None:
    clock = Clock()
    guard = TokenGuard("the right one", clock)
    waits = []
    for number in range(12):
        assert guard.check(f"guess {number}") == "wrong"
        waits.append(guard.wait_s)
        if guard.wait_s:
            assert guard.check("the right one") == "wait"
        clock.now += guard.wait_s
    assert waits == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert guard.failures == 12
    assert guard.check("the right one") == "right"
    assert guard.check("a slip") == "wrong"
    assert guard.wait_s == 0.0, "the right one was given meanwhile"


def test_any_text_can_be_given_as_a_token() -> None:
    guard = TokenGuard("ein gültiges Wort")
    assert guard.check("\udcff" * 10_000) == "wrong"
    assert guard.check("ein gültiges Wort") == "right"


def test_the_record_of_actions_is_bounded() -> None:
    journal = AuditJournal()
    for number in range(KEPT_MAX + 10):
        journal.write(address="a", who="w" * 9000, action="pause", target=str(number), outcome="done", is_done=True)
    assert len(journal.newest()) == KEPT_MAX
    assert journal.newest()[0].target == str(KEPT_MAX + 9)
    assert len(journal.newest()[0].who) <= 500


# -- charts


def test_a_chart_shows_the_last_minutes_and_a_gap_where_nothing_is_known() -> None:
    clock = Clock()
    history = RateHistory(clock)
    for value in [1.0] * 300 + [None, None, 4.0, 2.0]:
        history.add("<b>Events/s", value)
        history.add("<b>Events/s", 999.0)  # in the same step
        clock.now += STEP_S
    points = history.lines()["<b>Events/s"]
    assert len(points) <= SPAN_S / STEP_S + 1
    drawn = charts(history)
    assert "&lt;b&gt;Events/s" in drawn
    assert "now 2.0, at most 4.0" in drawn
    assert drawn.count("<polyline") == 2
    places = [float(across) for across in re.findall(r"[ \"](-?[\d.]+),", drawn)]
    assert min(places) >= 0
    assert max(places) <= 300


def test_a_chart_of_nothing_says_unknown() -> None:
    history = RateHistory(Clock())
    assert charts(history) == '<div class="charts"></div>'
    history.add("Lag", None)
    assert 'now <span class="unknown">unknown</span>' in charts(history)
    history.add("Idle", 0.0)
    assert "now 0.0, at most 0.0" in charts(history)


# -- the tail


class FakeSession:
    """Takes the place of a session: the test delivers frames by itself."""

    def __init__(self) -> None:
        self.deliver: Callable[[Sequence[Any]], None] = lambda _: None
        self.closed = 0

    def frames(self, topics: Sequence[str], on_frames: Any, *, on_resync: Any) -> Any:
        del topics, on_resync
        self.deliver = on_frames
        return self

    def close(self) -> None:
        self.closed += 1


def delivery(*values: Any, skipped: int = 0, body: bytes | None = None) -> tuple[bytes, frames.Header, int]:
    events = [Event(table="t", key=f"k{number}", action="set", value=value) for number, value in enumerate(values)]
    packed = frames.pack(
        frames.Kind.DATA, GUID, "a/b", pack_body([encode_event(one, 1) for one in events]) if body is None else body,
        first=1, after=0, count=len(values), timestamp=1,
    )  # fmt: skip
    return packed, frames.unpack(packed, bytes_max=1 << 30), skipped


def new_tail(clock: Clock, *, shows_values: bool = True) -> tuple[EventTail, FakeSession]:
    session: Any = FakeSession()
    return EventTail(session, "a/#", shows_values=shows_values, clock=clock), session


def test_a_tail_keeps_a_few_and_counts_the_rest() -> None:
    clock = Clock()
    found, session = new_tail(clock)
    session.deliver([delivery(*range(10), skipped=4)])
    assert [one.value for one in found.newest()] == ["9", "8", "7", "6", "5", "4"]
    session.deliver([delivery(*range(100)), delivery(*range(1000))])
    assert len(found.newest()) == tail.EVENTS_KEPT
    assert (found.passed, found.left_out) == (1106, 1106 - tail.EVENTS_PER_S)
    clock.now += 1
    session.deliver([delivery("next")])
    assert found.newest()[0].value == '"next"'
    assert found.left_out == 1106 - tail.EVENTS_PER_S


def test_a_tail_cuts_what_is_long_and_decodes_nothing_that_is_large() -> None:
    found, session = new_tail(Clock())
    session.deliver([delivery("x" * 5000), delivery("x" * tail.FRAME_BYTES_MAX)])
    [only] = found.newest()
    assert only.value is not None
    assert only.value.startswith('"xxx')
    assert only.value.endswith("(5,002 characters)")
    assert (found.passed, found.left_out) == (2, 1)
    session.deliver([delivery("a", body=b"\xc1")])
    assert found.undecodable == 1


def test_a_tail_that_may_not_show_values_keeps_none() -> None:
    found, session = new_tail(Clock(), shows_values=False)
    session.deliver([delivery("secret")])
    assert [one.value for one in found.newest()] == [None]


def test_tails_are_few_and_end_when_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = FakeSession()
    registry = TailRegistry(lambda: session, shows_values=False)
    for number in range(tail.TAILS_MAX):
        assert registry.get(f"a/{number}") is registry.get(f"a/{number}")
    with pytest.raises(LimitReached):
        registry.get("one/more")
    for wrong, error in (("$queue/work/#", UsageError), ("a/#/b", InvalidTopic), ("", InvalidTopic)):
        with pytest.raises(error):
            registry.get(wrong)
    registry.close_unseen()
    assert session.closed == 0
    monkeypatch.setattr(tail, "UNSEEN_S", -1.0)
    registry.close_unseen()
    assert session.closed == tail.TAILS_MAX
    registry.get("one/more")
    registry.close()
    assert session.closed == tail.TAILS_MAX + 1
    with pytest.raises(LimitReached):
        registry.get("late")
