"""The subscriber of shared subscriptions: what `Session.subscriber` returns for ``$shared`` and ``$queue`` filters.

Threads.  The *protocol* thread talks to leaders and drives the core's clock.  The *reader* reads the log for the
partitions that are held, and the *watcher* waits for it to grow.  *Dispatchers* call the user; when the user iterates
instead, its own thread is the dispatcher.  The *leader's* thread watches which process leads which group, and leads
some.  All of them meet in the core, under one lock that is never held during I/O or a call of the user.  There are as
many threads and sockets for a thousand groups as for one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from oslo_config import cfg

from durable_log.log_api import LogApi
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import Closed, Forked, UsageError, WaitTimeout
from pubsub_api.runtime import forking
from pubsub_api.subscribing.history import Mismatch
from pubsub_api.subscribing.scheme import GroupMember, OnGroupEvent, OnGroupEvents
from shared_subscriptions import config, groups
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.consuming.dispatch import Dispatch
from shared_subscriptions.consuming.feeding import Feeder
from shared_subscriptions.consuming.memberships import MemberGroup, Memberships
from shared_subscriptions.consuming.protocol import ProtocolThread
from shared_subscriptions.consuming.reading import GroupLogReader
from shared_subscriptions.consuming.statistics import (
    GroupSubscriberStatistics,
    MemberLinkStatistics,
    MemberLogStatistics,
)
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core.consuming.handler import Handler
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.events import Mode
from shared_subscriptions.core.leading.candidate import LeaderRecord
from shared_subscriptions.core.settings import LeaseSettings
from shared_subscriptions.errors import GroupDestroyed, GroupNotFound, NotAGroupEvent
from shared_subscriptions.leading.listener import LeadershipListener
from shared_subscriptions.leading.recording import Recording
from shared_subscriptions.leading.thread import LeaderThread

LOG = logging.getLogger(__name__)

_CLOSE_EXTRA_S = 1.0


class GroupSubscriber(GroupMember):
    """A member of one or several groups.  Every method may be called from any thread.

    With ``on_event`` or ``on_events`` the user is called from dispatcher threads; without, iterate.  With ``auto_ack``
    an event is acknowledged when the callback returns, or when the next one is asked for, and tried again when the
    callback raises; without, call `acknowledge` or `refuse` for every event.
    """

    def __init__(
        self,
        log: LogApi,
        conf: cfg.ConfigOpts,
        topics: Sequence[str],
        *,
        on_event: OnGroupEvent | None = None,
        on_events: OnGroupEvents | None = None,
        auto_ack: bool = True,
        name: str = "",
        recording: Recording | None = None,
    ) -> None:
        """Takes over the log and closes it in the end.  ``recording`` serves the groups that this process leads."""
        if on_event is not None and on_events is not None:
            raise UsageError("give on_event or on_events, not both")
        if not topics:
            raise UsageError("a subscriber needs at least one topic filter")
        self._log = log
        self._conf = conf
        self._options = conf[config.GROUP]
        self._recording = recording
        self._lock = threading.Condition(threading.RLock())
        self._handler = Handler(
            config.borrower_settings(conf), config.delivery_settings(conf), lambda: uuid.uuid4().hex,
            name=name or self._options.member_name or _new_name(), progress_interval_s=config.PROGRESS_INTERVAL_S,
            portions_max=max(2 * self._options.concurrency, 0 if auto_ack else config.QUEUE_IN_FLIGHT_MIN),
            offsets_max=0 if auto_ack else 1,
        )  # fmt: skip
        self._memberships = Memberships()
        self._is_closed = False
        self._is_inherited = False
        self._leaders = LeaderThread(log, conf)
        self._protocol = ProtocolThread(
            self._handler, self._lock, self._memberships, progress_interval_s=config.PROGRESS_INTERVAL_S,
            look_now=self._leaders.look_now,
        )  # fmt: skip
        self._feeder = Feeder(
            log, self._handler, self._lock, self._memberships, tell=self._protocol.wake,
            note=self._protocol.note_progress, on_growth=self._leaders.log_grown,
        )  # fmt: skip
        self._dispatch = Dispatch(
            self._handler, self._lock, self._memberships, self._options, on_event=on_event, on_events=on_events,
            auto_ack=auto_ack, wake=self._protocol.wake, note=self._protocol.note_progress,
            wake_reader=self._feeder.wake,
        )  # fmt: skip
        forking.register(self)
        try:
            for topic_filter in topics:
                self.subscribe(topic_filter)
        except BaseException:
            self._leaders.close(timeout_s=0.0)
            self._protocol.close()
            raise
        self._protocol.start(self._dispatch, self._feeder.wake)
        self._feeder.start()
        self._dispatch.start()

    # -- subscriptions

    def subscribe(self, topic_filter: str) -> bool:
        """Join a group; True when this is new.  Declares the group, from now on, when it does not exist.

        Raises InvalidTopic, GroupExists when the group is declared otherwise, GroupDestroyed when this subscriber was a
        member of a former group of that name, LogUnavailable.
        """
        self._check_usable()
        mode, name, inner = declarations.parse(topic_filter)
        if topic_filter in self._memberships.filters:
            return False
        lanes = self._options.lanes if mode == "shared" else 1
        declaration = _join(self._log, name, inner, mode, lanes, config.lease_settings(self._conf))
        with self._lock:
            known = self._memberships.groups.get(name)
            if known is not None and known.declaration.incarnation != declaration.incarnation:
                raise GroupDestroyed(
                    f"group {name!r} was destroyed and declared anew while this subscriber was a member: make a new one"
                )
            self._memberships.destroyed.discard(name)
            if known is None:
                self._memberships.groups[name] = self._make_group(declaration)
            number = self._memberships.subscribe(topic_filter, name)
            self._handler.subscribe(number, is_ordered=mode == "shared", now=time.monotonic())
        self._protocol.wake()
        return True

    def unsubscribe(self, topic_filter: str) -> bool:
        """Leave a group in good order; True when it was there.  Events that are with the user may still be settled."""
        self._check_usable()
        with self._lock:
            number = self._memberships.filters.pop(topic_filter, None)
            if number is not None and number in self._handler.subscriptions:
                self._handler.unsubscribe(number, time.monotonic())
        self._protocol.wake()
        return number is not None

    def _about(self) -> str:
        return f"of {', '.join(self.topics)} in {self._log!r}"

    @property
    def topics(self) -> list[str]:
        """The filters in use."""
        return sorted(self._memberships.filters)

    def _make_group(self, declaration: Declaration) -> MemberGroup:
        """Under the lock, which whatever the leader's thread says waits for."""
        name = declaration.name
        letters = DeadLetters(self._log, name, config.DEAD_LETTER_TOPIC)
        reader = GroupLogReader(self._log, declaration)
        owner = LeadershipListener(
            on_leader=lambda leader: self._on_leader(name, leader),
            on_destroyed=lambda: self._on_destroyed(name),
            is_own=self._is_own,
        )
        if self._recording is not None:
            owner = dataclasses.replace(
                owner, on_rule=self._recording.on_rule, on_standby=self._recording.on_standby,
                on_handover=self._recording.on_handover, is_recording=self._recording.is_recording,
            )  # fmt: skip
        return MemberGroup(declaration, self._leaders.add(declaration, owner), reader, letters)

    def _is_own(self, borrower: str) -> bool:
        """Whether a borrower is of this subscriber, or was before a reset: leases end with a dead leader, and what it
        wanted holds until there is another.  For the leader's thread."""
        with self._lock:
            return self._handler.agent.is_own(borrower)

    # -- what the leader's thread says

    def _on_leader(self, name: str, leader: LeaderRecord | None) -> None:
        with self._lock:
            self._memberships.move(name, leader)
        self._protocol.wake()

    def _on_destroyed(self, name: str) -> None:
        with self._lock:
            if name not in self._memberships.destroyed:
                self._memberships.destroyed.add(name)
                LOG.warning("Group %s does not exist any more; nothing more will be delivered.", name)
            self._lock.notify_all()

    # -- what the user calls

    def acknowledge(self, event: GroupEvent) -> bool:
        """The event is done.  False when its partition was lost meanwhile: the group may deliver it again.

        Raises NotAGroupEvent.
        """
        self._check_event(event)
        return self._dispatch.ack(event)

    def refuse(self, event: GroupEvent, delay_s: float | None = None) -> None:
        """The event could not be handled: deliver it again, after ``delay_s`` or the configured back-off.

        Other events of its topic and key wait for it.  When it has used up its attempts it goes to the dead letters;
        this call then blocks until it is stored there.  Raises NotAGroupEvent.
        """
        self._check_event(event)
        if delay_s is not None and not 0 <= delay_s < math.inf:
            raise UsageError(f"delay_s is {delay_s}: events cannot be delivered in the past, nor never")
        self._dispatch.nack(event, delay_s)

    def extend(self, event: GroupEvent) -> bool:
        """The event takes longer: `handler_timeout` begins anew.  False when it was taken away already.

        Raises NotAGroupEvent.
        """
        self._check_event(event)
        return self._dispatch.extend(event)

    def __iter__(self) -> Iterator[GroupEvent]:
        """Events until the subscriber is closed.  Raises GroupDestroyed when all its groups are gone."""
        self._check_usable()
        return self._dispatch.events(self._memberships.check_alive)

    def get(self, *, timeout_s: float | None = None) -> GroupEvent | None:
        """The next event, None when none came within the time.  One thread at a time; others iterate.

        With ``auto_ack`` the event before is acknowledged by that.  Raises Closed, GroupDestroyed.
        """
        self._check_usable()
        event = self._dispatch.get(self._memberships.check_alive, timeout_s)
        if event is None:
            self._check_usable()
        return event

    def wait_ready(self, *, timeout_s: float) -> None:
        """Return when every subscription has found its leader, and what this process records as leader is recorded.

        Where publishers own the addresses (zmq, longpoll) it waits for none of them: what one has published before it
        was heard of is asked of its cache.  Raises WaitTimeout; it goes on trying.
        """
        self._check_usable()
        deadline = time.monotonic() + timeout_s
        self._wait_for(self._is_ready, timeout_s, "the leader of the group was not found")
        if self._recording is not None:
            self._recording.wait_ready(timeout_s=max(0.0, deadline - time.monotonic()))

    def wait_for_historical_data(self, timeout_s: float) -> HistoryOutcome:  # noqa: ARG002  the same call for all
        """COMPLETE at once, as for any subscriber without ``durability``: a group gets what the log has in one order,
        from where it begins, and its past is no other thing than its present.  `statistics` tell what waits."""
        self._check_usable()
        return HistoryOutcome.COMPLETE

    def durability_mismatches(self) -> Sequence[Mismatch]:
        """None: the log keeps everything that it is to record."""
        return ()

    def wait_streams(self, count: int = 1, *, timeout_s: float) -> None:
        """Return when at least so many partitions are held.  Raises WaitTimeout."""
        self._check_usable()
        self._wait_for(lambda: len(self._handler.loans) >= count, timeout_s, f"there are not yet {count} partitions")

    def _is_ready(self) -> bool:
        return all(self._handler.agent.is_connected(number) for number in self._memberships.filters.values())

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float, problem: str) -> None:
        with self._lock:
            if not self._lock.wait_for(lambda: self._is_closed or self._memberships.is_gone or condition(), timeout_s):
                raise WaitTimeout(f"{problem} within {timeout_s} s")
            self._memberships.check_alive()

    def statistics(self) -> GroupSubscriberStatistics:
        with self._lock:
            counters = self._handler.counters
            return GroupSubscriberStatistics(
                delivered=counters.delivered, redelivered=counters.redelivered, acknowledged=counters.acknowledged,
                failed=counters.failed, timed_out=counters.timed_out, hung=self._dispatch.hung,
                dead_letters=counters.dead, late=counters.late, expired=counters.expired,
                streams=len(self._handler.loans),
                waiting=sum(loan.delivery.load for loan in self._handler.loans),
                links=MemberLinkStatistics(
                    grants=self._handler.granted, resets=self._handler.agent.resets,
                    protocol_errors=self._protocol.errors,
                    bad_messages=self._protocol.links.counters["bad_messages"],
                    link_failures=self._protocol.links.counters["link_failures"],
                ),
                log=MemberLogStatistics(
                    errors=self._feeder.log_errors, damaged=self._feeder.damaged,
                    went_back=self._feeder.went_back,
                    undecodable=self._feeder.undecodable, park_failures=self._dispatch.park_failures,
                ),
                callback_errors=self._dispatch.callback_errors,
                is_leading=sum(group.leading.is_leading for group in self._memberships.groups.values()),
                missing=self._recording.missing if self._recording is not None else 0,
                standing_by=self._recording.standing_by if self._recording is not None else 0,
            )  # fmt: skip

    # -- the end

    def close(self) -> None:
        """Give everything back in good order, within `unsubscribe_timeout`, and stop.  Idempotent.

        No callback runs after it returns, unless it is called from one, or one has not returned within that time: then
        that is logged, its thread is left behind, and its event comes again at another member.
        """
        with self._lock:
            if self._is_closed or self._is_inherited:
                return
            self._is_closed = self._protocol.is_closing = True
            for number in self._handler.subscriptions:
                self._handler.unsubscribe(number, time.monotonic())
        self._protocol.wake()
        patience_s = self._options.unsubscribe_timeout + _CLOSE_EXTRA_S
        self._dispatch.close(timeout_s=patience_s)
        with self._lock:
            self._lock.wait_for(lambda: not self._handler.agent.subscriptions, patience_s)
            self._handler.disconnect(time.monotonic())  # borrowers that are left report what they know
        self._protocol.wake()
        self._leaders.close(timeout_s=config.REVOKE_TIMEOUT_S)
        self._protocol.stop()
        self._feeder.close()
        self._protocol.close()
        if self._recording is not None:
            self._recording.close()
        self._log.close()

    def _check_usable(self) -> None:
        if self._is_inherited:
            raise Forked("a subscriber does not live on in a forked child: make a new one there")
        if self._is_closed:
            raise Closed("the subscriber is closed")

    def _check_event(self, event: GroupEvent) -> None:
        if not isinstance(event, GroupEvent):
            raise NotAGroupEvent(f"{type(event).__name__} did not come from a shared subscription")

    def after_fork_in_child(self) -> None:
        parts = self._protocol, self._memberships, self._leaders, self._feeder, self._dispatch
        forking.set_aside((*parts, self._lock))
        self._is_inherited = True
        self._lock = threading.Condition(threading.RLock())


def _new_name() -> str:
    """A name for a member that was given none: known again after a lost lease, not after a restart."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


def _join(log: LogApi, name: str, topic_filter: str, mode: Mode, lanes: int, lease: LeaseSettings) -> Declaration:
    """The group, declared from now on if it is not yet; one that exists keeps the lanes it has."""
    with contextlib.suppress(GroupNotFound):
        lanes = groups.get(log, name).lanes
    return groups.declare(log, name, topic_filter, mode=mode, lanes=lanes, lease=lease)
