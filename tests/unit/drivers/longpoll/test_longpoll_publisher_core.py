"""The publisher's half of the protocol: every message in every state, and the cases that have a story."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from heliograph_drivers.pubsub.longpoll.core import publisher
from heliograph_drivers.pubsub.longpoll.core.mailbox import Bounds, MailboxPolicy
from heliograph_drivers.pubsub.longpoll.core.publisher import LongpollPublisherCore, SessionCause
from heliograph_drivers.pubsub.longpoll.core.session import LongpollPublisherSettings, PollAnswer, SessionState
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Leave, Mail, Poll, SessionStatus
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from tests.unit.drivers.longpoll.index_entries import filters_of
from tests.unit.drivers.longpoll.recording import Recording

SESSION, OTHER = b"s" * 16, b"o" * 16
SETTINGS = LongpollPublisherSettings(
    Bounds(frames_max=5, bytes_max=10**6, reply_frames_max=3, reply_bytes_max=10**6),
    poll_interval_s=10.0, session_timeout_s=30.0, sessions_max=2, subscriptions_max=6,
    policy_of=lambda _topic: MailboxPolicy.LOSSLESS,
)  # fmt: skip


def data(topic: str, number: int) -> bytes:
    return frames.pack(Kind.DATA, bytes(16), topic, b"\x90", first=number, after=number - 1, count=1)


class Rig:
    """A publisher core and one subscriber that knows what to say to it."""

    def __init__(self) -> None:
        self.core = LongpollPublisherCore(SETTINGS, b"p" * 16)
        self.serial = 0
        self.polls = itertools.count(1)

    def command(self, *names: str, first: int = 1, session: bytes = SESSION, now: float = 0.0) -> Applied:
        commands = [(not name.startswith("-"), name.removeprefix("-")) for name in names]
        applied = self.core.command(FrameBatch(session, self.serial, first, commands), now)
        if session == SESSION and applied.status == SessionStatus.OK:
            self.serial = applied.serial
        return applied

    def poll(self, acknowledged: int = 0, *, hold_s: float = 10.0, now: float = 0.0) -> list[PollAnswer]:
        return self.core.poll(Poll(SESSION, self.serial, next(self.polls), acknowledged, hold_s), now)

    def mail(self, acknowledged: int = 0, *, now: float = 0.0) -> Mail:
        """What a poll is answered at once."""
        [answer] = self.poll(acknowledged, now=now)
        return answer.mail

    def vanish(self) -> None:
        """Nobody polls any more: those who wait are answered first, and forgotten then."""
        for now in (1e6, 2e6):
            self.core.tick(now)
        self.check_empty()

    def check_empty(self) -> None:
        core = self.core
        assert (len(core.sessions), len(core.index), len(core.overfull)) == (0, 0, 0)
        assert core.index._root.is_empty


@pytest.fixture
def rig() -> Iterator[Rig]:
    """When everybody has gone silent for long enough, nothing is left, whatever the test did."""
    rig = Rig()
    yield rig
    rig.vanish()


# -- commands


def test_the_first_batch_opens_a_session(rig: Rig) -> None:
    applied = rig.command("a", "b/#")
    assert (applied.status, applied.serial, applied.number) == (SessionStatus.OK, 1, 2)
    assert sorted(filters_of(rig.core.index, rig.core.sessions[SESSION])) == ["a", "b/#"]


def test_a_repeated_batch_has_no_second_effect(rig: Rig) -> None:
    rig.command("a", "b")
    rig.command("-a", first=3)
    for first, names in ((1, ("a", "b")), (3, ("-a",)), (2, ("b", "-a"))):
        assert rig.command(*names, first=first).number == 3
    assert list(filters_of(rig.core.index, rig.core.sessions[SESSION])) == ["b"]
    assert rig.core.counters().repeated_commands == 5
    assert rig.command("b", "-a", "c", first=2).number == 4, "what is new in it takes effect"


def test_the_last_command_wins(rig: Rig) -> None:
    rig.command("a", "-a", "a", "b", "-b")
    assert list(filters_of(rig.core.index, rig.core.sessions[SESSION])) == ["a"]


def test_a_gap_in_the_commands_is_no_session_we_know(rig: Rig) -> None:
    rig.command("a")
    assert rig.command("c", first=3).status == SessionStatus.UNKNOWN
    assert rig.command("x", first=2, session=OTHER).status == SessionStatus.UNKNOWN


def test_limits_refuse_and_leave_nothing_behind(rig: Rig) -> None:
    rig.command(*"abcd")
    assert rig.command("e", "f", "g", session=OTHER).status == SessionStatus.UNKNOWN, (
        "a serial number of another session"
    )
    rig.serial, serial = 0, rig.serial
    assert rig.command("e", "f", "g", session=OTHER).status == SessionStatus.REFUSED
    assert OTHER not in rig.core.sessions
    assert rig.command("e", session=OTHER).status == SessionStatus.OK
    refused = rig.command("e", session=b"t" * 16)
    assert (refused.status, refused.reason) == (SessionStatus.REFUSED, "sessions_max of the publisher is reached")
    rig.serial = serial
    assert rig.command("x", "y", first=5).status == SessionStatus.REFUSED
    assert rig.core.sessions[SESSION].applied == 4
    assert rig.core.counters().refused == 3


# -- mail


def test_mail_that_came_before_the_poll_is_kept(rig: Rig) -> None:
    rig.command("a")
    rig.core.publish("a", data("a", 1))
    rig.core.publish("nobody", data("nobody", 1))
    assert rig.mail().runs == [(1, [data("a", 1)])]


def test_a_parked_poll_is_answered_by_the_next_frames_together(rig: Rig) -> None:
    rig.command("a")
    assert rig.poll() == []
    rig.core.publish("a", data("a", 1))
    rig.core.publish("a", data("a", 2))
    assert rig.core.has_ready
    [answer] = rig.core.flush(1.0)
    assert answer[:2] == (SESSION, 1)
    assert answer.mail.runs == [(1, [data("a", 1), data("a", 2)])]
    assert rig.core.flush(1.0) == []


def test_a_lost_answer_is_sent_again_and_the_rest_after_it(rig: Rig) -> None:
    rig.command("a")
    for number in range(1, 6):
        rig.core.publish("a", data("a", number))
    first = rig.mail()
    assert rig.mail() == first
    rest = rig.mail(3)
    assert (rest.first, [len(run) for _, run in rest.runs]) == (4, [2])
    assert rig.poll(5) == []


def test_frames_carry_the_commands_that_were_in_effect(rig: Rig) -> None:
    rig.command("a")
    rig.core.publish("a", data("a", 1))
    rig.command("-a", "a", first=2)
    rig.core.publish("a", data("a", 2))
    assert rig.mail().runs == [(1, [data("a", 1)]), (3, [data("a", 2)])]


def test_unsubscribing_empties_the_mailbox_of_that_topic(rig: Rig) -> None:
    rig.command("a", "b", "c/#")
    for topic in ("a", "b", "c/x"):
        rig.core.publish(topic, data(topic, 1))
    rig.command("-a", "-c/#", "c/x", first=4)
    assert rig.mail().runs == [(3, [data("b", 1), data("c/x", 1)])]


def test_who_is_too_far_behind_is_reset_and_told_before_anything_else(rig: Rig) -> None:
    rig.command("a")
    assert rig.poll() == []
    for number in range(1, 7):
        rig.core.publish("a", data("a", number))
    assert [session.id for session in rig.core.reset_overfull()] == [SESSION]
    rig.core.publish("a", data("a", 7))
    [answer] = rig.core.flush(0.0)
    assert (answer.mail.status, answer.mail.first, answer.mail.runs) == (SessionStatus.RESET, 1, [])
    assert rig.mail().status == SessionStatus.RESET, "until it is acknowledged"
    assert rig.mail(1).runs == [(1, [data("a", 7)])]
    assert (rig.core.counters().resets, rig.core.counters().frames_reset) == (1, 6)


def test_a_second_reset_is_told_although_the_first_is_on_its_way(rig: Rig) -> None:
    rig.command("a")
    numbers = itertools.count(1)
    for expected in (1, 2):
        for _ in range(6):
            rig.core.publish("a", data("a", next(numbers)))
        rig.core.reset_overfull()
        assert (rig.mail(expected - 1).status, rig.mail(expected - 1).first) == (SessionStatus.RESET, expected)


def test_room_comes_back_by_polling(rig: Rig) -> None:
    rig.command("a")
    for number in range(1, 7):
        rig.core.publish("a", data("a", number))
    assert rig.core.overfull
    rig.mail()
    assert not rig.core.overfull
    assert rig.core.reset_overfull() == []


# -- polls


def test_a_newer_poll_supersedes_and_an_older_one_has_no_effect(rig: Rig) -> None:
    rig.command("a")
    assert rig.poll() == []
    [answer] = rig.poll()
    assert (answer.poll, answer.mail.status) == (1, SessionStatus.SUPERSEDED)
    [answer] = rig.core.poll(Poll(SESSION, rig.serial, 1, 0, 10.0), 0.0)
    assert (answer.poll, answer.mail.status) == (1, SessionStatus.SUPERSEDED)
    assert rig.core.sessions[SESSION].state is SessionState.PARKED, "the newest is not disturbed"
    assert rig.core.counters().superseded == 2


def test_an_idle_poll_is_answered_in_time_and_its_subscriber_never_dies(rig: Rig) -> None:
    rig.command("a")
    now = 0.0
    for _ in range(20):
        assert rig.poll(hold_s=3600.0, now=now) == []
        now += 9.9
        assert rig.core.tick(now) == []
        now += 0.1
        [answer] = rig.core.tick(now)
        assert answer.mail == Mail(SessionStatus.OK, b"p" * 16)
    assert rig.core.counters().sessions_dead == 0


def test_a_poll_may_ask_not_to_wait(rig: Rig) -> None:
    rig.command("a")
    [answer] = rig.poll(hold_s=0.0)
    assert answer.mail == Mail(SessionStatus.OK, b"p" * 16)


def test_who_does_not_poll_is_forgotten_with_everything(rig: Rig) -> None:
    rig.command("a", "b/#")
    rig.core.publish("a", data("a", 1))
    assert rig.core.tick(29.9) == []
    assert SESSION in rig.core.sessions
    rig.core.tick(30.0)
    rig.check_empty()
    assert rig.core.counters().sessions_dead == 1
    assert rig.mail(now=31.0).status == SessionStatus.UNKNOWN, "and is told"
    assert rig.core.next_deadline() is None


def test_a_poll_that_broke_counts_as_the_last_sign_of_life(rig: Rig) -> None:
    rig.command("a")
    assert rig.poll(now=20.0) == []
    rig.core.hang_up(SESSION, 1, 25.0)
    rig.core.hang_up(SESSION, 99, 50.0)
    rig.core.hang_up(OTHER, 1, 50.0)
    rig.core.tick(54.9)
    assert rig.core.sessions
    rig.core.tick(55.0)
    rig.check_empty()


def test_a_session_made_anew_is_not_the_old_one(rig: Rig) -> None:
    """A copy of the first batch that comes late, after its session was forgotten, must not pass for it."""
    rig.command("a")
    serial = rig.serial
    rig.core.tick(30.0)
    rig.serial = 0
    rig.command("a", now=31.0)
    rig.serial = serial
    assert rig.mail(now=32.0).status == SessionStatus.UNKNOWN
    assert rig.command("b", first=2).status == SessionStatus.UNKNOWN


def test_an_acknowledgement_of_what_was_never_sent_is_no_session_we_know(rig: Rig) -> None:
    rig.command("a")
    assert rig.mail(1).status == SessionStatus.UNKNOWN


def test_leaving_frees_everything_and_answers_the_poll(rig: Rig) -> None:
    rig.command("a")
    assert rig.poll() == []
    [answer] = rig.core.leave(Leave(SESSION, rig.serial), 1.0)
    assert answer.mail.status == SessionStatus.UNKNOWN
    assert rig.core.leave(Leave(SESSION, rig.serial), 1.0) == []
    rig.check_empty()
    assert rig.core.flush(1.0) == []


def test_closing_delivers_first_and_tells_then(rig: Rig) -> None:
    rig.command("a")
    rig.core.publish("a", data("a", 1))
    assert rig.core.has_mail
    assert rig.core.close(0.0) == []
    assert rig.mail().runs
    assert rig.mail(1).status == SessionStatus.CLOSING
    assert not rig.core.has_mail
    assert rig.command("b", first=2).status == SessionStatus.CLOSING


def test_closing_answers_who_waits(rig: Rig) -> None:
    rig.command("a")
    rig.poll()
    [answer] = rig.core.close(0.0)
    assert answer.mail.status == SessionStatus.CLOSING


# -- every message in every state


def in_state(name: str) -> Rig:
    """The session that messages are sent about is absent, away, parked, reset, or its publisher is closing."""
    rig = Rig()
    if name == "absent":
        rig.serial = 1
        return rig
    rig.command("a")
    if name == "parked":
        rig.poll()
    elif name == "reset":
        for number in range(1, 7):
            rig.core.publish("a", data("a", number))
        rig.core.reset_overfull()
    elif name == "closing":
        rig.core.close(0.0)
    return rig


MESSAGES = {
    "opening batch": lambda rig: rig.core.command(FrameBatch(SESSION, 0, 1, [(True, "a")]), 1.0).status,
    "next batch": lambda rig: rig.core.command(FrameBatch(SESSION, rig.serial, 2, [(True, "b")]), 1.0).status,
    "gap": lambda rig: rig.core.command(FrameBatch(SESSION, rig.serial, 9, [(True, "b")]), 1.0).status,
    "foreign serial": lambda rig: rig.core.command(FrameBatch(SESSION, 77, 1, [(True, "b")]), 1.0).status,
    "poll": lambda rig: [answer.mail.status for answer in rig.poll(now=1.0)],
    "probe": lambda rig: [answer.mail.status for answer in rig.poll(hold_s=0.0, now=1.0)],
    "stale poll": lambda rig: [a.mail.status for a in rig.core.poll(Poll(SESSION, rig.serial, 0, 0, 1.0), 1.0)],
    "false acknowledgement": lambda rig: [a.mail.status for a in rig.poll(99, now=1.0)],
    "leave": lambda rig: [answer.mail.status for answer in rig.core.leave(Leave(SESSION, rig.serial), 1.0)],
    "hang up": lambda rig: rig.core.hang_up(SESSION, rig.core.sessions[SESSION].poll if rig.core.sessions else 1, 1.0),
    "late hang up": lambda rig: rig.core.hang_up(SESSION, 0, 1.0),
    "frame": lambda rig: rig.core.publish("a", data("a", 9)) or [a.mail.status for a in rig.core.flush(1.0)],
    "tick": lambda rig: [answer.mail.status for answer in rig.core.tick(1000.0)],
    "close": lambda rig: [answer.mail.status for answer in rig.core.close(1.0)],
}
OK, UNKNOWN, SUPERSEDED, RESET, CLOSING, REFUSED = SessionStatus
RESPONSES: dict[str, tuple[object, ...]] = {
    #                         absent     away          parked                  reset         closing
    "opening batch":         (OK, OK, OK, OK, CLOSING),
    "next batch":            (UNKNOWN, OK, OK, OK, CLOSING),
    "gap":                   (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, CLOSING),
    "foreign serial":        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, CLOSING),
    "poll":                  ([UNKNOWN], [], [SUPERSEDED], [RESET], [CLOSING]),
    "probe":                 ([UNKNOWN], [OK], [SUPERSEDED, OK], [RESET], [CLOSING]),
    "stale poll":            ([UNKNOWN], [SUPERSEDED], [SUPERSEDED], [SUPERSEDED], [SUPERSEDED]),
    "false acknowledgement": ([UNKNOWN], [UNKNOWN], [UNKNOWN], [UNKNOWN], [UNKNOWN]),
    "leave":                 ([], [], [UNKNOWN], [], []),
    "hang up":               (None, None, None, None, None),
    "late hang up":          (None, None, None, None, None),
    "frame":                 ([], [], [OK], [], []),
    "tick":                  ([], [], [OK], [], []),
    "close":                 ([], [], [CLOSING], [], []),
}  # fmt: skip
STATES = ("absent", "away", "parked", "reset", "closing")


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_in_every_state(message: str) -> None:
    for state, response in zip(STATES, RESPONSES[message], strict=True):
        rig = in_state(state)
        assert MESSAGES[message](rig) == response, state
        rig.vanish()


def test_every_transition_is_used_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Recording(publisher.TRANSITIONS)
    monkeypatch.setattr(publisher, "TRANSITIONS", table)
    for state, message in itertools.product(STATES, MESSAGES):
        MESSAGES[message](in_state(state))
    assert table.used == set(table)
    assert {state for state, _ in table} == set(SessionState)
    assert {cause for _, cause in table} == set(SessionCause)
