"""The subscriber's side of the long-poll protocol: one link to one publisher.

Sans-IO: every call gets the time; the actions (send, deliver, report) are collected and fetched with `take`.  Every
change of a link's state is in this file.

At most one poll and one batch of commands wait for an answer.  For each the owner calls exactly one method, with the
answer or with the failure, within the time limit of the action.  Answers to an older session, poll or batch are
ignored.

=========== ============= =========== =============================================================================
state       cause         next state  meaning
=========== ============= =========== =============================================================================
LOST        OPEN          OPENING     the first commands are sent, under the name of a new session
LOST        RESUME        RESUMING    there is an old session: a poll asks whether the publisher still has it
LOST        FAILED        LOST        a late answer said that a batch was refused
LOST        FORGOTTEN     LOST        a late answer said that the session is unknown
OPENING     ACCEPTED      JOINING     the publisher has the session; further commands are sent, polling begins
OPENING     FAILED        LOST        no answer, or the publisher has no room: try again later
RESUMING    ACCEPTED      JOINING     the publisher has the session; no frame of the meantime is lost
RESUMING    FAILED        LOST        no answer: try again later
RESUMING    FORGOTTEN     LOST        the publisher has restarted or forgotten the session: open a new one at once
JOINING     SETTLED       LIVE        every filter is in effect: report up
JOINING     FAILED        LOST        as for LIVE, without a report
JOINING     FORGOTTEN     LOST        as for LIVE, without a report
LIVE        FAILED        LOST        a poll broke or got no answer: report down; resume the session later
LIVE        FORGOTTEN     LOST        the publisher has restarted or forgotten the session: report down; open a new one
LIVE        RESET         JOINING     the mailbox was full and was emptied: report down, and up when settled
JOINING     RESET         JOINING     the same, before the link was up
RESUMING    RESET         JOINING     the same, while resuming
=========== ============= =========== =============================================================================

**Filters.**  The last command wins: a waiting command is replaced by the next one for the same filter.  A batch numbers
its commands; the publisher marks frames with the number of the last command that was in effect when they were
published.  A frame passes when it matches a filter that is wanted now and was in effect then.  So a new subscription
gets no frame of an old one to the same topic, and no frame comes for a filter after it was dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from heliograph_drivers.pubsub.longpoll.core.actions import (
    Action,
    Deliver,
    Down,
    InEffect,
    LinkCounters,
    LinkSettings,
    SendBatch,
    SendLeave,
    SendPoll,
    Up,
)
from heliograph_drivers.pubsub.longpoll.core.wanted import Wanted
from heliograph_drivers.pubsub.longpoll.core.wire import (
    BATCH_BYTES_MAX,
    Applied,
    FrameBatch,
    Leave,
    Mail,
    Poll,
    SessionStatus,
)
from pubsub_api.runtime.backoff import Backoff

_COMMAND_BYTES = 8
"""The size of a command beside its filter, at most."""


class LinkState(enum.Enum):
    LOST = "lost"
    OPENING = "opening"
    RESUMING = "resuming"
    JOINING = "joining"
    LIVE = "live"


class LinkCause(enum.Enum):
    OPEN = "open"
    RESUME = "resume"
    ACCEPTED = "accepted"
    SETTLED = "settled"
    FAILED = "failed"
    FORGOTTEN = "forgotten"
    RESET = "reset"


TRANSITIONS: dict[tuple[LinkState, LinkCause], LinkState] = {
    (LinkState.LOST, LinkCause.OPEN): LinkState.OPENING,
    (LinkState.LOST, LinkCause.RESUME): LinkState.RESUMING,
    (LinkState.LOST, LinkCause.FAILED): LinkState.LOST,
    (LinkState.LOST, LinkCause.FORGOTTEN): LinkState.LOST,
    (LinkState.OPENING, LinkCause.ACCEPTED): LinkState.JOINING,
    (LinkState.OPENING, LinkCause.FAILED): LinkState.LOST,
    (LinkState.RESUMING, LinkCause.ACCEPTED): LinkState.JOINING,
    (LinkState.RESUMING, LinkCause.FAILED): LinkState.LOST,
    (LinkState.RESUMING, LinkCause.FORGOTTEN): LinkState.LOST,
    (LinkState.JOINING, LinkCause.SETTLED): LinkState.LIVE,
    (LinkState.JOINING, LinkCause.FAILED): LinkState.LOST,
    (LinkState.JOINING, LinkCause.FORGOTTEN): LinkState.LOST,
    (LinkState.LIVE, LinkCause.FAILED): LinkState.LOST,
    (LinkState.LIVE, LinkCause.FORGOTTEN): LinkState.LOST,
    (LinkState.LIVE, LinkCause.RESET): LinkState.JOINING,
    (LinkState.JOINING, LinkCause.RESET): LinkState.JOINING,
    (LinkState.RESUMING, LinkCause.RESET): LinkState.JOINING,
}


class LinkCore:
    """See the module's description.  Not thread-safe: the owner serialises calls.  ``new_session`` returns 16 random
    bytes, ``jitter`` a number from 0 to 1."""

    def __init__(
        self,
        settings: LinkSettings,
        filters: Iterable[str],
        *,
        new_session: Callable[[], bytes],
        jitter: Callable[[], float],
        now: float,
    ) -> None:
        self.settings = settings
        self.counters = LinkCounters()
        self.state = LinkState.LOST
        self.publisher = b""
        """The name of the publisher in its last answer; a restarted publisher has another one."""
        self._new_session = new_session
        self._jitter = jitter
        self._wanted = Wanted(filters)
        self._waiting: dict[str, bool] = {}
        """Commands that are not in a batch yet, in order."""
        self._batch: FrameBatch | None = None
        """The batch that was not confirmed yet."""
        self._is_batch_under_way = False
        self._batch_at: float | None = None
        """When the batch is sent again."""
        self._session = b""
        self._serial = 0
        self._numbered = 0
        """The last number given to a command."""
        self._poll = 0
        self._is_poll_under_way = False
        self._acknowledged = 0
        self._retry_at: float | None = now
        self._backoff = Backoff(settings.retry_min_s, settings.retry_max_s, jitter=jitter)
        self._is_closed = False
        self._out: list[Action] = []

    # -- state

    def take(self) -> list[Action]:
        """The actions since the last call, in order."""
        out, self._out = self._out, []
        return out

    def next_deadline(self) -> float | None:
        """When `tick` must be called; None when it need not be called."""
        due = [at for at in (self._retry_at, self._batch_at) if at is not None]
        return min(due) if due else None

    @property
    def is_up(self) -> bool:
        return self.state is LinkState.LIVE

    @property
    def is_known(self) -> bool:
        """Whether the publisher answers and has the session."""
        return self.state in (LinkState.JOINING, LinkState.LIVE)

    @property
    def filters(self) -> set[str]:
        return set(self._wanted)

    # -- input

    def tick(self, now: float) -> None:
        """Try again what is due."""
        if self._is_closed:
            return
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            if self._serial:
                self.state = TRANSITIONS[self.state, LinkCause.RESUME]
                self._send_poll(0.0)
            else:
                self._open()
        if self._batch_at is not None and now >= self._batch_at:
            self._batch_at = None
            self._send_batch()

    def subscribe(self, topic_filter: str) -> None:
        """Want a filter from now on."""
        self._wanted.add(topic_filter)
        self._command(True, topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Drop a filter: no frame is delivered for it from now on."""
        self._wanted.discard(topic_filter)
        self._command(False, topic_filter)

    def batch_answered(self, batch: FrameBatch, applied: Applied, now: float) -> None:
        """Handle the answer to a batch."""
        if self._is_closed or not self._is_current_batch(batch):
            return
        self._is_batch_under_way = False
        if applied.status == SessionStatus.OK:
            self.publisher = applied.publisher
            self._on_applied(batch, applied)
        elif applied.status == SessionStatus.UNKNOWN:
            self._on_forgotten(applied.publisher, applied.reason, now)
        else:
            self._give_up_session(applied.reason, now)

    def batch_failed(self, batch: FrameBatch, reason: str, now: float) -> None:
        """Handle that a batch got no answer.  It may have been applied, so it is sent again unchanged."""
        if self._is_closed or not self._is_current_batch(batch):
            return
        self._is_batch_under_way = False
        self.counters.failures += 1
        if self.state is LinkState.OPENING:
            self._lose(LinkCause.FAILED, reason, now)
        elif self.state in (LinkState.JOINING, LinkState.LIVE):
            self._batch_at = now + self._backoff.next_s()

    def poll_answered(self, poll: Poll, mail: Mail, now: float) -> None:
        """Handle the answer to a poll."""
        if self._is_closed or not self._is_current_poll(poll):
            return
        self._is_poll_under_way = False
        if mail.status == SessionStatus.OK:
            self.publisher = mail.publisher
            self._on_mail(mail, now)
        elif mail.status == SessionStatus.RESET and mail.first > self._acknowledged:
            self._on_reset(mail)
        elif mail.status == SessionStatus.UNKNOWN:
            self._on_forgotten(mail.publisher, mail.reason, now)
        elif mail.status == SessionStatus.CLOSING:
            self._give_up_session(mail.reason, now)
        elif mail.status in (SessionStatus.SUPERSEDED, SessionStatus.RESET):
            self._send_poll(0.0)  # the answer to an earlier poll: the publisher repeats its mail
        else:
            self._on_forgotten(mail.publisher, f"the publisher answered a poll with status {mail.status}", now)

    def poll_failed(self, poll: Poll, reason: str, now: float) -> None:
        """Handle that a poll broke or got no answer."""
        if self._is_closed or not self._is_current_poll(poll):
            return
        self._is_poll_under_way = False
        self.counters.failures += 1
        self._lose(LinkCause.FAILED, reason, now)

    def close(self) -> None:
        """Leave the publisher.  Later input has no effect."""
        if not self._is_closed and self._session:
            self._out.append(SendLeave(Leave(self._session, self._serial)))
        self._is_closed = True
        self._retry_at = self._batch_at = None

    # -- sessions

    def _open(self) -> None:
        """Begin a session, or repeat the first batch of one that got no answer yet."""
        self.state = TRANSITIONS[self.state, LinkCause.OPEN]
        if not self._session:
            self.counters.sessions += 1
            self._session = self._new_session()
            self._numbered = self._poll = self._acknowledged = 0
            self._is_poll_under_way = False
            self._waiting = dict.fromkeys(self._wanted, True)
            self._make_batch()
        self._send_batch()

    def _forget_session(self) -> None:
        self._session, self._serial = b"", 0
        self._batch, self._batch_at = None, None
        self._is_batch_under_way = self._is_poll_under_way = False
        self._waiting.clear()
        self._wanted.reset()

    def _lose(self, cause: LinkCause, reason: str, now: float) -> None:
        was_up = self.is_up
        self.state = TRANSITIONS[self.state, cause]
        self._batch_at = None
        self._retry_at = now if cause is LinkCause.FORGOTTEN else now + self._backoff.next_s()
        if was_up:
            self._out.append(Down(reason))

    def _on_forgotten(self, publisher: bytes, reason: str, now: float) -> None:
        """Handle that the publisher does not know the session: it has restarted, or considered this end dead."""
        self.counters.forgotten += 1
        is_restart = bool(self.publisher) and publisher != self.publisher
        self.publisher = publisher
        is_opening = self.state is LinkState.OPENING
        self._forget_session()
        text = "the publisher has restarted" if is_restart else reason
        self._lose(LinkCause.FAILED if is_opening else LinkCause.FORGOTTEN, text, now)

    def _give_up_session(self, reason: str, now: float) -> None:
        """Handle that the publisher ends or refuses the session: try a new one later."""
        self.counters.failures += 1
        if self._serial:
            self._out.append(SendLeave(Leave(self._session, self._serial)))
        self._forget_session()
        self._lose(LinkCause.FAILED, reason, now)

    # -- commands

    def _command(self, is_wanted: bool, topic_filter: str) -> None:
        if not self._session or self._is_closed:
            return  # the next session begins with all filters that are wanted then
        self._waiting.pop(topic_filter, None)
        self._waiting[topic_filter] = is_wanted
        if self._batch is None and self.state in (LinkState.JOINING, LinkState.LIVE):
            self._make_batch()
            self._send_batch()

    def _make_batch(self) -> None:
        chosen = _fitting(self._waiting, self.settings.batch_max)
        commands = [(self._waiting.pop(name), name) for name in chosen]
        first = self._numbered + 1
        self._numbered += len(commands)
        for number, (is_wanted, name) in enumerate(commands, first):
            if is_wanted:
                self._wanted.number(name, number)
        self._batch = FrameBatch(self._session, self._serial, first, commands)
        self.counters.commands += len(commands)

    def _send_batch(self) -> None:
        if self._batch is not None and not self._is_batch_under_way:
            self._is_batch_under_way = True
            self.counters.batches += 1
            self._out.append(SendBatch(self._batch, self.settings.command_timeout_s))

    def _is_current_batch(self, batch: FrameBatch) -> bool:
        current = self._batch
        if current is None or not self._is_batch_under_way:
            return False
        # An empty first batch and the batch after it begin with the same number, but differ in the serial number.
        return (batch.session, batch.serial, batch.first) == (current.session, current.serial, current.first)

    def _on_applied(self, batch: FrameBatch, applied: Applied) -> None:
        self._batch = None
        self._backoff.reset()
        if self.state is LinkState.OPENING:
            self._serial = applied.serial
            self.state = TRANSITIONS[self.state, LinkCause.ACCEPTED]
            self._send_poll(self.settings.poll_interval_s)
        elif self.is_up:
            for number, (is_wanted, name) in enumerate(batch.commands, batch.first):
                if is_wanted and self._wanted.has(name, number):
                    self._out.append(InEffect(name))
        self._settle()

    def _settle(self) -> None:
        """Send the next batch; without one, all filters are in effect."""
        if self.state not in (LinkState.JOINING, LinkState.LIVE):
            return
        if self._batch is None and self._waiting:
            self._make_batch()
        if self._batch is not None:
            self._send_batch()
        elif self.state is LinkState.JOINING:
            self.state = TRANSITIONS[self.state, LinkCause.SETTLED]
            self._out.append(Up())

    # -- polls and mail

    def _send_poll(self, hold_s: float) -> None:
        self._poll += 1
        self._is_poll_under_way = True
        self.counters.polls += 1
        poll = Poll(self._session, self._serial, self._poll, self._acknowledged, hold_s)
        self._out.append(SendPoll(poll, hold_s + self.settings.poll_grace_s))

    def _is_current_poll(self, poll: Poll) -> bool:
        return self._is_poll_under_way and (poll.session, poll.number) == (self._session, self._poll)

    def _on_mail(self, mail: Mail, now: float) -> None:
        count = sum(len(frames) for _, frames in mail.runs)
        if count and mail.first > self._acknowledged + 1:
            self._on_forgotten(mail.publisher, f"frames {self._acknowledged + 1} to {mail.first - 1} are missing", now)
            return
        if self.state is LinkState.RESUMING:
            self.counters.resumed += 1
            self.state = TRANSITIONS[self.state, LinkCause.ACCEPTED]
        self._backoff.reset()
        if count:
            self._deliver(mail, self._acknowledged + 1 - mail.first)
            self._acknowledged = max(self._acknowledged, mail.first + count - 1)
        self.counters.skipped += mail.skipped
        self._send_poll(self.settings.poll_interval_s)
        self._settle()

    def _on_reset(self, mail: Mail) -> None:
        self.counters.resets += 1
        was_up = self.is_up
        self.state = TRANSITIONS[self.state, LinkCause.RESET]
        self._acknowledged = mail.first
        if was_up:
            self._out.append(Down(mail.reason))
        self._send_poll(self.settings.poll_interval_s)
        self._settle()

    def _deliver(self, mail: Mail, known: int) -> None:
        """Hand over the new frames that are wanted.  The first ``known`` frames were delivered before."""
        wanted: list[bytes] = []
        for as_of, frames in mail.runs:
            duplicates = min(known, len(frames))
            known -= duplicates
            self.counters.duplicates += duplicates
            fresh = frames[duplicates:]
            # If the publisher had exactly the present filters, all frames are wanted.
            if as_of != self._numbered or self._waiting:
                passed = [frame for frame in fresh if self._wanted.selects(frame, as_of)]
                self.counters.outdated += len(fresh) - len(passed)
                fresh = passed
            wanted += fresh
        self.counters.frames += len(wanted)
        if wanted:
            self._out.append(Deliver(wanted))


def _fitting(names: Iterable[str], count_max: int) -> list[str]:
    """The first names, as many as fit into one batch, and at least one."""
    chosen: list[str] = []
    size = 0
    for name in names:
        size += len(name.encode()) + _COMMAND_BYTES
        if len(chosen) >= count_max or (chosen and size > BATCH_BYTES_MAX):
            break
        chosen.append(name)
    return chosen
