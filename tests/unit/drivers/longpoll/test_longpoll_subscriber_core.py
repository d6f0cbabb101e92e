"""The subscriber's half of the protocol: every message in every state, and the cases that have a story."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from heliograph_drivers.pubsub.longpoll.core import subscriber
from heliograph_drivers.pubsub.longpoll.core.actions import (
    Action,
    Deliver,
    Down,
    InEffect,
    LinkSettings,
    SendBatch,
    SendLeave,
    SendPoll,
    Up,
)
from heliograph_drivers.pubsub.longpoll.core.subscriber import LinkCause, LinkCore, LinkState
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Mail, Poll, SessionStatus
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from tests.unit.drivers.longpoll.recording import Recording

P, Q = b"p" * 16, b"q" * 16
SETTINGS = LinkSettings(
    poll_interval_s=10.0, poll_grace_s=5.0, command_timeout_s=3.0, batch_max=2, retry_min_s=1.0, retry_max_s=4.0
)


def data(topic: str, number: int) -> bytes:
    return frames.pack(Kind.DATA, bytes(16), topic, b"\x90", first=number, after=number - 1, count=1)


class Rig:
    """A link, and what it wants done."""

    made: ClassVar[list[Rig]] = []

    def __init__(self, *filters: str) -> None:
        sessions = (bytes([number]) * 16 for number in itertools.count(1))
        self.now = 0.0
        self.core = LinkCore(SETTINGS, filters, new_session=lambda: next(sessions), jitter=lambda: 1.0, now=0.0)
        self.poll: Poll | None = None
        self.batch: FrameBatch | None = None
        self.core.tick(0.0)
        Rig.made.append(self)

    def take(self) -> list[Action]:
        """What is to be done; calls are remembered as the ones that can be answered."""
        actions = self.core.take()
        for action in actions:
            if isinstance(action, SendPoll):
                self.poll = action.poll
            elif isinstance(action, SendBatch):
                self.batch = action.batch
        return actions

    def news(self) -> list[Action]:
        """What is to be done, calls left out."""
        return [action for action in self.take() if not isinstance(action, SendPoll | SendBatch)]

    def apply(self, status: SessionStatus = SessionStatus.OK, *, publisher: bytes = P, serial: int = 1) -> None:
        self.take()
        assert self.batch is not None
        number = self.batch.first + len(self.batch.commands) - 1
        self.core.batch_answered(self.batch, Applied(status, publisher, serial, number, "because"), self.now)

    def answer(
        self, status: SessionStatus = SessionStatus.OK, *, publisher: bytes = P, first: int = 0, runs: Any = ()
    ) -> None:
        self.take()
        assert self.poll is not None
        self.core.poll_answered(self.poll, Mail(status, publisher, first, list(runs), 0, "because"), self.now)

    def fail_poll(self) -> None:
        self.take()
        assert self.poll is not None
        self.core.poll_failed(self.poll, "it broke", self.now)

    def fail_batch(self) -> None:
        self.take()
        assert self.batch is not None
        self.core.batch_failed(self.batch, "it broke", self.now)

    def wait(self) -> None:
        """Until the core has something to do."""
        due = self.core.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        self.core.tick(self.now)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A link that was closed wants at most to say goodbye, whatever the test did to it."""
    yield
    while Rig.made:
        core = Rig.made.pop().core
        core.take()
        core.close()
        assert all(isinstance(action, SendLeave) for action in core.take())
        assert core.next_deadline() is None


def live(*filters: str) -> Rig:
    rig = Rig(*filters)
    rig.apply()
    while rig.core.state is LinkState.JOINING:
        rig.apply()
    assert rig.core.is_up
    rig.take()
    return rig


# -- opening


def test_a_session_begins_with_what_is_wanted_in_batches_one_at_a_time() -> None:
    rig = Rig(*"abcde")
    [action] = rig.take()
    assert isinstance(action, SendBatch)
    assert action.batch == FrameBatch(b"\x01" * 16, 0, 1, [(True, "a"), (True, "b")])
    rig.apply()
    poll, batch = rig.take()
    assert isinstance(poll, SendPoll)
    assert poll.poll == Poll(b"\x01" * 16, 1, 1, 0, 10.0)
    assert poll.timeout_s == 15.0
    assert isinstance(batch, SendBatch)
    assert batch.batch == FrameBatch(b"\x01" * 16, 1, 3, [(True, "c"), (True, "d")])
    rig.apply()
    assert rig.news() == [], "not before all are in effect"
    rig.apply()
    assert rig.news() == [Up()]


def test_without_filters_the_link_is_up_as_well() -> None:
    rig = Rig()
    rig.apply()
    assert rig.news() == [Up()]


def test_a_first_batch_without_answer_is_repeated_as_it_was_and_later_each_time() -> None:
    rig = Rig("a")
    rig.take()
    first, waits = rig.batch, []
    for _ in range(4):
        rig.fail_batch()
        before = rig.now
        rig.core.subscribe(f"late-{before}")
        rig.wait()
        waits.append(rig.now - before)
        rig.take()
        assert rig.batch == first, "it may have been applied"
    assert waits == [1.0, 2.0, 4.0, 4.0]


def test_a_publisher_that_refuses_is_asked_again_under_a_new_name() -> None:
    rig = Rig("a")
    rig.apply(SessionStatus.REFUSED)
    assert rig.core.state is LinkState.LOST
    rig.wait()
    rig.take()
    assert rig.batch is not None
    assert rig.batch.session == b"\x02" * 16


def test_a_second_answer_to_an_empty_first_batch_is_not_taken_for_the_next_one() -> None:
    rig = Rig()
    rig.take()
    empty = rig.batch
    rig.apply()
    rig.core.subscribe("a")
    rig.take()
    assert empty is not None
    rig.core.batch_answered(empty, Applied(SessionStatus.OK, P, 1, 0), 0.0)
    assert rig.news() == [], "not in effect yet"
    rig.apply()
    assert rig.news() == [InEffect("a")]


# -- commands


def test_filters_that_are_added_later_are_reported_when_in_effect() -> None:
    rig = live("a")
    rig.core.subscribe("b")
    rig.core.subscribe("c")
    [action] = rig.take()
    assert isinstance(action, SendBatch)
    assert action.batch.commands == [(True, "b")], "what is under way is not changed"
    rig.core.unsubscribe("a")
    rig.apply()
    assert rig.news() == [InEffect("b")]
    assert rig.batch is not None
    assert rig.batch.commands == [(True, "c"), (False, "a")]
    rig.apply()
    assert rig.news() == [InEffect("c")]
    assert rig.core.filters == {"b", "c"}


def test_a_command_that_waits_is_replaced_by_the_next_for_the_same_filter() -> None:
    rig = live()
    rig.core.subscribe("busy")
    for _ in range(1000):
        rig.core.subscribe("b")
        rig.core.unsubscribe("b")
    rig.core.subscribe("b")
    rig.apply()
    rig.take()
    assert rig.batch is not None
    assert rig.batch.commands == [(True, "b")]
    rig.apply()
    assert rig.news() == [InEffect("b")]


def test_a_batch_that_stayed_without_answer_is_repeated_while_the_link_is_up() -> None:
    rig = live("a")
    rig.core.subscribe("b")
    rig.take()
    batch = rig.batch
    rig.fail_batch()
    assert rig.core.is_up
    rig.batch = None
    rig.wait()
    rig.take()
    assert rig.batch == batch


# -- frames


def test_frames_are_delivered_and_acknowledged_by_the_next_poll() -> None:
    rig = live("a")
    rig.answer(first=1, runs=[(1, [data("a", 1), data("a", 2)])])
    assert rig.news() == [Deliver([data("a", 1), data("a", 2)])]
    assert rig.poll is not None
    assert (rig.poll.number, rig.poll.acknowledged) == (2, 2)


def test_frames_that_come_again_are_delivered_once() -> None:
    rig = live("a")
    rig.answer(first=1, runs=[(1, [data("a", 1)])])
    rig.answer(first=1, runs=[(1, [data("a", 1), data("a", 2)])])
    assert [action for action in rig.news() if isinstance(action, Deliver)] == [Deliver([data("a", 2)])]
    assert rig.core.counters.duplicates == 1


def test_missing_frames_are_not_passed_over() -> None:
    rig = live("a")
    rig.answer(first=3, runs=[(1, [data("a", 3)])])
    [down] = rig.news()
    assert isinstance(down, Down)
    assert "1 to 2" in down.reason


def test_nothing_comes_for_a_filter_that_was_dropped() -> None:
    rig = live("a", "b/#")
    rig.core.unsubscribe("a")
    rig.core.unsubscribe("b/#")
    rig.answer(first=1, runs=[(2, [data("a", 1), data("b/x", 1)])])
    assert rig.news() == []
    assert rig.core.counters.outdated == 2


@pytest.mark.parametrize(("topic_filter", "topic"), [("a", "a"), ("b/#", "b/x")])
def test_nothing_of_an_old_subscription_reaches_a_new_one(topic_filter: str, topic: str) -> None:
    rig = live(topic_filter)
    rig.core.unsubscribe(topic_filter)
    rig.core.subscribe(topic_filter)
    rig.answer(first=1, runs=[(1, [data(topic, 1)])])
    assert rig.news() == [], "the publisher does not know yet"
    rig.apply()
    rig.apply()
    assert rig.news() == [InEffect(topic_filter)]
    rig.answer(first=2, runs=[(1, [data(topic, 2)]), (3, [data(topic, 3)])])
    assert rig.news() == [Deliver([data(topic, 3)])]


def test_filters_that_overlap_keep_what_they_select() -> None:
    rig = live("a/#", "a/x")
    rig.core.unsubscribe("a/x")
    rig.core.subscribe("a/x")
    rig.answer(first=1, runs=[(2, [data("a/x", 1), b"no frame at all"])])
    assert rig.news() == [Deliver([data("a/x", 1), b"no frame at all"])]


# -- losing and finding each other


def test_a_broken_link_is_resumed_without_loss() -> None:
    rig = live("a")
    rig.answer(first=1, runs=[(1, [data("a", 1)])])
    rig.take()
    rig.fail_poll()
    assert rig.news() == [Down("it broke")]
    rig.wait()
    rig.take()
    assert rig.poll is not None
    assert (rig.poll.session, rig.poll.acknowledged, rig.poll.hold_s) == (b"\x01" * 16, 1, 0.0)
    rig.answer(first=2, runs=[(1, [data("a", 2)])])
    assert rig.news() == [Deliver([data("a", 2)]), Up()]
    assert rig.core.counters.resumed == 1


def test_filters_changed_while_the_link_was_down_are_in_effect_when_it_is_up() -> None:
    rig = live("a")
    rig.fail_poll()
    assert rig.news() == [Down("it broke")]
    rig.core.subscribe("b")
    rig.core.unsubscribe("a")
    rig.wait()
    rig.answer()
    assert rig.news() == []
    assert rig.batch is not None
    assert rig.batch.commands == [(True, "b"), (False, "a")]
    rig.apply()
    assert rig.news() == [Up()]


def test_who_was_taken_for_dead_is_told_and_begins_anew() -> None:
    rig = live("a")
    rig.answer(SessionStatus.UNKNOWN)
    assert rig.news() == [Down("because")]
    rig.wait()
    assert rig.now == 0.0, "at once"
    rig.take()
    assert rig.batch == FrameBatch(b"\x02" * 16, 0, 1, [(True, "a")])
    rig.apply(serial=2)
    assert rig.news() == [Up()]
    assert rig.poll is not None
    assert (rig.poll.serial, rig.poll.number, rig.poll.acknowledged) == (2, 1, 0)


def test_a_publisher_that_was_started_again_is_named_as_that() -> None:
    rig = live("a")
    rig.answer(SessionStatus.UNKNOWN, publisher=Q)
    assert rig.news() == [Down("the publisher has restarted")]


def test_a_publisher_that_ends_is_not_hurried() -> None:
    rig = live("a")
    rig.answer(SessionStatus.CLOSING)
    assert [action for action in rig.news() if isinstance(action, Down)] == [Down("because")]
    assert rig.core.next_deadline() == 1.0


def test_a_reset_is_reported_as_a_break_and_the_link_is_up_again() -> None:
    rig = live("a")
    rig.answer(SessionStatus.RESET, first=5)
    assert rig.news() == [Down("because"), Up()]
    assert rig.poll is not None
    assert rig.poll.acknowledged == 5
    rig.core.subscribe("b")
    rig.answer(SessionStatus.RESET, first=6)
    assert rig.news() == [Down("because")], "up when every filter is in effect"
    rig.apply()
    assert rig.news() == [Up()]


def test_a_poll_that_was_superseded_is_repeated() -> None:
    rig = live("a")
    rig.answer(SessionStatus.SUPERSEDED)
    [poll] = rig.take()
    assert isinstance(poll, SendPoll)
    assert rig.core.is_up


def test_leaving_says_goodbye_and_nothing_follows() -> None:
    rig = live("a")
    rig.core.close()
    [leave] = rig.take()
    assert isinstance(leave, SendLeave)
    assert leave.leave.session == b"\x01" * 16
    for message in MESSAGES.values():
        message(rig)
    assert rig.take() == []
    assert rig.core.next_deadline() is None


# -- every message in every state


def in_state(state: LinkState) -> Rig:
    """A link in that state, with a poll and a batch that may still be answered, if it has any."""
    if state is LinkState.OPENING:
        rig = Rig("a")
    elif state is LinkState.JOINING:
        rig = Rig("a", "b", "c")
        rig.apply()
    else:
        rig = live("a")
        rig.core.subscribe("b")
        if state is not LinkState.LIVE:
            rig.fail_poll()
        if state is LinkState.RESUMING:
            rig.wait()
    rig.take()
    assert rig.core.state is state
    return rig


def _if(has: Callable[[Rig], object], call: Callable[[Rig], None]) -> Callable[[Rig], None]:
    return lambda rig: call(rig) if has(rig) else None


MESSAGES: dict[str, Callable[[Rig], None]] = {
    **{
        f"batch {status.name}": _if(lambda rig: rig.batch, lambda rig, status=status: rig.apply(status))  # type: ignore[misc]
        for status in SessionStatus
    },
    "batch failed": _if(lambda rig: rig.batch, Rig.fail_batch),
    "batch of another session": lambda rig: rig.core.batch_answered(
        FrameBatch(b"x" * 16, 0, 1, []), Applied(SessionStatus.OK, P, 1, 1), rig.now
    ),
    **{
        f"mail {status.name}": _if(lambda rig: rig.poll, lambda rig, status=status: rig.answer(status, first=1))  # type: ignore[misc]
        for status in SessionStatus
    },
    "mail with frames": _if(lambda rig: rig.poll, lambda rig: rig.answer(first=1, runs=[(1, [data("a", 1)])])),
    "mail with a gap": _if(lambda rig: rig.poll, lambda rig: rig.answer(first=9, runs=[(1, [data("a", 1)])])),
    "mail of a later version": _if(lambda rig: rig.poll, lambda rig: rig.answer(99)),  # type: ignore[arg-type]
    "poll failed": _if(lambda rig: rig.poll, Rig.fail_poll),
    "mail for an old poll": lambda rig: rig.core.poll_answered(
        Poll(b"x" * 16, 1, 1, 0, 1.0), Mail(SessionStatus.UNKNOWN, P), rig.now
    ),
    "subscribe": lambda rig: rig.core.subscribe("new"),
    "unsubscribe": lambda rig: rig.core.unsubscribe("a"),
    "unsubscribe the unknown": lambda rig: rig.core.unsubscribe("never"),
    "tick": lambda rig: rig.core.tick(rig.now + 1000.0),
    "early tick": lambda rig: rig.core.tick(rig.now),
    "close": lambda rig: rig.core.close(),
}


def revive(rig: Rig) -> None:
    """A publisher that works answers everything: the link must come up, whatever happened to it."""
    for _ in range(20):
        rig.now += 100.0
        rig.core.tick(rig.now)
        rig.take()
        if rig.core.state is LinkState.LIVE and rig.core._batch is None:
            return
        if rig.core._is_batch_under_way:
            rig.apply(serial=7)
        if rig.core._is_poll_under_way:
            rig.answer()
    raise AssertionError(f"stuck in {rig.core.state}")


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_in_every_state_leaves_a_link_that_comes_up(message: str) -> None:
    for state in LinkState:
        rig = in_state(state)
        MESSAGES[message](rig)
        if message != "close":
            revive(rig)


@pytest.mark.parametrize("second", MESSAGES)
def test_any_two_messages_in_every_state(second: str) -> None:
    for state, first in itertools.product(LinkState, MESSAGES):
        rig = in_state(state)
        MESSAGES[first](rig)
        rig.take()
        MESSAGES[second](rig)
        if "close" not in (first, second):
            revive(rig)


def test_every_transition_is_used_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Recording(subscriber.TRANSITIONS)
    monkeypatch.setattr(subscriber, "TRANSITIONS", table)
    for state, message in itertools.product(LinkState, MESSAGES):
        rig = in_state(state)
        MESSAGES[message](rig)
    assert table.used == set(table)
    assert {state for state, _ in table} == set(LinkState)
    assert {cause for _, cause in table} == set(LinkCause)
