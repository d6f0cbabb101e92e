"""The publisher's side of the long-poll protocol: sessions, their filters, their mailboxes, their polls.

Sans-IO: every call gets the time and the message, and returns the answers.  Every change of a session's state is in
this file.

A session begins with its first batch of commands, and ends when its subscriber leaves or is considered dead.  In
between it is in one of two states:

=========== ============ =========== ==============================================================================
state       cause        next state  meaning
=========== ============ =========== ==============================================================================
AWAY        PARK         PARKED      a poll came, and there is no mail for it
AWAY        ANSWER       AWAY        a poll came and was answered at once
PARKED      ANSWER       AWAY        mail, a reset, a newer poll, the end of its time or of the publisher
PARKED      HANG_UP      AWAY        the connection of the poll broke
AWAY        HANG_UP      AWAY        the connection broke while the answer was on its way
=========== ============ =========== ==============================================================================

A session that is AWAY for ``session_timeout_s`` is considered dead and forgotten.  A live subscriber polls again as
soon as it has an answer, and a parked poll is answered after ``poll_interval_s`` at the latest, so an idle subscriber
is never forgotten.

The effect of each message on a known and on an unknown session:

========= ================================================= ========================================================
message   known session                                     unknown session
========= ================================================= ========================================================
Batch     commands that are new take effect; a gap or       opened if the batch starts at 1 and has no serial
          another serial number: UNKNOWN                    number; else UNKNOWN
Poll      acknowledges, then waits or is answered; if older UNKNOWN
          than the last one: SUPERSEDED, without effect
Leave     the session is forgotten                          no effect
========= ================================================= ========================================================
"""

from __future__ import annotations

import dataclasses
import enum
import heapq

from heliograph_drivers.pubsub.longpoll.core.index import SubscriptionIndex
from heliograph_drivers.pubsub.longpoll.core.mailbox import SubscriberMailbox
from heliograph_drivers.pubsub.longpoll.core.peers import PeerSessions
from heliograph_drivers.pubsub.longpoll.core.session import (
    LongpollPublisherSettings,
    PollAnswer,
    PublisherCounters,
    SessionState,
    SubscriberSession,
)
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Leave, Mail, Poll, SessionStatus


class SessionCause(enum.Enum):
    PARK = "park"
    ANSWER = "answer"
    HANG_UP = "hang up"


TRANSITIONS: dict[tuple[SessionState, SessionCause], SessionState] = {
    (SessionState.AWAY, SessionCause.PARK): SessionState.PARKED,
    (SessionState.AWAY, SessionCause.ANSWER): SessionState.AWAY,
    (SessionState.PARKED, SessionCause.ANSWER): SessionState.AWAY,
    (SessionState.PARKED, SessionCause.HANG_UP): SessionState.AWAY,
    (SessionState.AWAY, SessionCause.HANG_UP): SessionState.AWAY,
}


class LongpollPublisherCore:
    """See the module's description.  Not thread-safe: the owner serialises calls.  ``publisher`` is a random name that
    a restarted publisher does not have."""

    def __init__(self, settings: LongpollPublisherSettings, publisher: bytes) -> None:
        self.settings = settings
        self.publisher = publisher
        self.index: SubscriptionIndex[SubscriberSession] = SubscriptionIndex()
        self.sessions: dict[bytes, SubscriberSession] = {}
        self.overfull: set[SubscriberSession] = set()
        """Sessions whose mailbox is overfull.  A poll or `reset_overfull` makes room."""
        self._counters = PublisherCounters()
        self._ready: list[SubscriberSession] = []
        self._timers: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._peers = PeerSessions(settings.sessions_max)
        self._is_closing = False

    # -- state

    @property
    def has_ready(self) -> bool:
        """Whether `flush` has polls to answer."""
        return bool(self._ready)

    @property
    def has_mail(self) -> bool:
        """Whether some frame or reset was not acknowledged yet."""
        return any(session.mailbox.has_mail or session.reset for session in self.sessions.values())

    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest; None when it need not be called."""
        return self._timers[0][0] if self._timers else None

    def counters(self) -> PublisherCounters:
        """The counters since the start, with those of present sessions."""
        total = dataclasses.replace(self._counters)
        for session in self.sessions.values():
            _add_mailbox(total, session.mailbox)
        return total

    # -- input

    def publish(self, topic: str, frame: bytes) -> None:
        """Put a frame into the mailbox of every session that wants its topic.  Check `overfull` and `has_ready`
        afterwards."""
        matched = self.index.match(topic)
        if not matched:
            return
        policy = self.settings.policy_of(topic)
        for session in matched:
            mailbox = session.mailbox
            mailbox.put(frame, session.applied, policy)
            if mailbox.is_overfull:
                self.overfull.add(session)
            self._note_ready(session)

    def command(self, batch: FrameBatch, now: float, connection: str = "") -> Applied:
        """Apply a batch: each command takes effect at most once and in order, or the whole batch has no effect.

        ``connection`` is the address and port of the peer, whose number of sessions is limited (`peers`).
        """
        if self._is_closing:
            return Applied(SessionStatus.CLOSING, self.publisher, reason="the publisher ends")
        session = self.sessions.get(batch.session)
        is_new = session is None
        if session is None:
            if batch.serial or batch.first != 1:
                return self._unknown_batch()
            if len(self.sessions) >= self.settings.sessions_max:
                return self._refuse("sessions_max")
            if (limit := self._peers.refusal(connection)) is not None:
                return self._refuse(limit)
            session = self._open(batch.session, now, connection)
        elif batch.serial not in (0, session.serial) or batch.first > session.applied + 1:
            return self._unknown_batch()
        fresh = batch.commands[session.applied + 1 - batch.first :]
        self._counters.repeated_commands += len(batch.commands) - len(fresh)
        if len(self.index) + sum(wanted for wanted, _ in fresh) > self.settings.subscriptions_max:
            if is_new:
                self._forget(session)
            return self._refuse("subscriptions_max")
        self._apply(session, fresh)
        return Applied(SessionStatus.OK, self.publisher, session.serial, session.applied)

    def poll(self, poll: Poll, now: float) -> list[PollAnswer]:
        """Handle a poll.  Returns answers to it, to the poll that it supersedes, or none."""
        self._counters.polls += 1
        session = self.sessions.get(poll.session)
        if session is None or session.serial != poll.serial or poll.acknowledged > session.mailbox.numbered:
            self._counters.unknown += 1
            reason = "the publisher does not know this session"
            return [PollAnswer(poll.session, poll.number, Mail(SessionStatus.UNKNOWN, self.publisher, reason=reason))]
        if poll.number <= session.poll:
            self._counters.superseded += 1
            return [PollAnswer(poll.session, poll.number, Mail(SessionStatus.SUPERSEDED, self.publisher))]
        answers = []
        if session.state is SessionState.PARKED:
            self._counters.superseded += 1
            answers.append(self._answer(session, Mail(SessionStatus.SUPERSEDED, self.publisher), now))
        session.poll = poll.number
        self._acknowledge(session, poll.acknowledged)
        mail = self._mail(session)
        if mail is None and (self._is_closing or poll.hold_s <= 0):
            mail = self._empty()
        if mail is not None:
            return [*answers, self._answer(session, mail, now)]
        self._move(session, SessionCause.PARK, now + min(poll.hold_s, self.settings.poll_interval_s))
        return answers

    def hang_up(self, session_id: bytes, poll: int, now: float) -> None:
        """Handle that the connection of a poll broke before it was answered, or before the answer had arrived."""
        session = self.sessions.get(session_id)
        if session is not None and session.poll == poll:
            self._move(session, SessionCause.HANG_UP, now + self.settings.session_timeout_s)

    def leave(self, leave: Leave, now: float) -> list[PollAnswer]:
        """End the session of a subscriber and free its memory at once."""
        session = self.sessions.get(leave.session)
        if session is None or leave.serial not in (0, session.serial):
            return []
        answers = []
        if session.state is SessionState.PARKED:
            answers.append(self._answer(session, Mail(SessionStatus.UNKNOWN, self.publisher, reason="it left"), now))
        self._forget(session)
        return answers

    def flush(self, now: float) -> list[PollAnswer]:
        """Answer the polls for which there is mail."""
        ready, self._ready = self._ready, []
        answers = []
        for session in ready:
            session.is_ready = False
            if session.state is SessionState.PARKED and (mail := self._mail(session)) is not None:
                answers.append(self._answer(session, mail, now))
        return answers

    def tick(self, now: float) -> list[PollAnswer]:
        """Answer polls that have waited long enough, and forget dead sessions."""
        answers = []
        while self._timers and self._timers[0][0] <= now:
            scheduled, serial, session_id = heapq.heappop(self._timers)
            session = self.sessions.get(session_id)
            if session is None or session.serial != serial or session.scheduled != scheduled:
                continue
            session.scheduled = float("inf")
            if session.due > now:
                self._schedule(session)
            elif session.state is SessionState.PARKED:
                answers.append(self._answer(session, self._empty(), now))
            else:
                self._forget(session)
                self._counters.sessions_dead += 1
        return answers

    def reset_overfull(self) -> list[SubscriberSession]:
        """Drop the mail of overfull sessions, and send each a reset.  Returns these sessions."""
        reset, self.overfull = list(self.overfull), set()
        for session in reset:
            self._counters.resets += 1
            self._counters.frames_reset += session.mailbox.clear()
            # A new number also when a reset is on its way: that one does not cover the frames that are dropped now.
            session.reset = session.mailbox.number_a_mark()
            self._note_ready(session)
        return reset

    def close(self, now: float) -> list[PollAnswer]:
        """Accept no further session, and tell subscribers that have got all their mail that the publisher ends."""
        self._is_closing = True
        parked = [session for session in self.sessions.values() if session.state is SessionState.PARKED]
        return [self._answer(session, self._mail(session) or self._empty(), now) for session in parked]

    # -- sessions

    def _open(self, session_id: bytes, now: float, connection: str) -> SubscriberSession:
        self._serial += 1
        session = SubscriberSession(
            session_id, self._serial, SubscriberMailbox(self.settings.bounds, self.settings.key), connection
        )
        self._peers.add(connection)
        self.sessions[session_id] = session
        session.due = now + self.settings.session_timeout_s
        self._schedule(session)
        return session

    def _forget(self, session: SubscriberSession) -> None:
        del self.sessions[session.id]
        self._peers.remove(session.connection)
        self.index.remove_subscriber(session)
        self.overfull.discard(session)
        _add_mailbox(self._counters, session.mailbox)

    def _apply(self, session: SubscriberSession, commands: list[tuple[bool, str]]) -> None:
        is_narrowed = False
        for is_wanted, topic_filter in commands:
            if is_wanted:
                self.index.add(session, topic_filter)
            else:
                is_narrowed |= self.index.remove(session, topic_filter)
        session.applied += len(commands)
        if is_narrowed and session.mailbox.has_mail:
            topics = session.mailbox.waiting_topics()
            session.mailbox.keep_topics({topic: self.index.matches(session, topic.decode()) for topic in topics})
            self._note_room(session)

    def _refuse(self, limit: str) -> Applied:
        self._counters.refused += 1
        return Applied(SessionStatus.REFUSED, self.publisher, reason=f"{limit} of the publisher is reached")

    def _unknown_batch(self) -> Applied:
        self._counters.unknown += 1
        return Applied(SessionStatus.UNKNOWN, self.publisher, reason="the publisher does not know this session")

    # -- polls

    def _acknowledge(self, session: SubscriberSession, number: int) -> None:
        if session.reset:
            if number < session.reset:
                return
            session.reset = 0
        session.mailbox.acknowledge(number)
        self._note_room(session)

    def _note_room(self, session: SubscriberSession) -> None:
        if not session.mailbox.is_overfull:
            self.overfull.discard(session)

    def _note_ready(self, session: SubscriberSession) -> None:
        if session.state is SessionState.PARKED and not session.is_ready:
            session.is_ready = True
            self._ready.append(session)

    def _mail(self, session: SubscriberSession) -> Mail | None:
        """The mail for a subscriber; None when there is none."""
        if session.reset:
            reason = "too many frames waited for this subscriber, they were dropped"
            return Mail(SessionStatus.RESET, self.publisher, session.reset, reason=reason)
        if not session.mailbox.has_mail:
            return None
        first, runs = session.mailbox.take()
        self._note_room(session)
        if not runs:
            return None
        return Mail(SessionStatus.OK, self.publisher, first, runs, session.mailbox.take_skipped())

    def _empty(self) -> Mail:
        if self._is_closing:
            return Mail(SessionStatus.CLOSING, self.publisher, reason="the publisher ends")
        return Mail(SessionStatus.OK, self.publisher)

    def _answer(self, session: SubscriberSession, mail: Mail, now: float) -> PollAnswer:
        self._move(session, SessionCause.ANSWER, now + self.settings.session_timeout_s)
        return PollAnswer(session.id, session.poll, mail)

    def _move(self, session: SubscriberSession, cause: SessionCause, due: float) -> None:
        session.state = TRANSITIONS[session.state, cause]
        session.due = due
        if session.state is not SessionState.PARKED:
            session.is_ready = False
        self._schedule(session)

    def _schedule(self, session: SubscriberSession) -> None:
        """Have `tick` look at the session when it is due or earlier.  One timer per session is enough, because most
        deadlines only move further away."""
        if session.due < session.scheduled:
            session.scheduled = session.due
            heapq.heappush(self._timers, (session.due, session.serial, session.id))


def _add_mailbox(counters: PublisherCounters, mailbox: SubscriberMailbox) -> None:
    counters.events_coalesced += mailbox.coalesced
    counters.events_dropped += mailbox.dropped
    counters.hellos_withheld += mailbox.withheld
