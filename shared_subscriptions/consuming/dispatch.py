"""Calling the user: dispatcher threads, or the user's own thread when it iterates.

The fence at delivery is here.  Before every batch, and before every event of it, the lease must run and the partition
must not have been asked back; what is left of a batch then waits again, unseen.

What the user is done with is settled with every report of progress, in the middle of a batch too, so that a crash
repeats no more than what was not reported yet.  A callback that does not return loses the event: see
`take_back_from_hung`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from durable_log.errors import LogError
from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import Closed, UsageError
from pubsub_api.subscribing.scheme import OnGroupEvent, OnGroupEvents, Unseen
from shared_subscriptions import config
from shared_subscriptions.consuming.getting import GettingTurns, Turns
from shared_subscriptions.consuming.handler_call import HandlerCall
from shared_subscriptions.consuming.memberships import Memberships
from shared_subscriptions.core.consuming.handler import Handler, LoanState

LOG = logging.getLogger(__name__)

Batch = tuple[LoanState, list[GroupEvent]]

_IDLE_S = 5.0
"""A thread that waits is woken; this is the longest wait should a wake-up be missing."""
_PARK_RETRY_S = 1.0
_CRASHED = "delivered {} times, and each time its consumer crashed or did not answer"


class Dispatch:
    def __init__(
        self,
        handler: Handler,
        lock: threading.Condition,
        memberships: Memberships,
        options: Any,
        *,
        on_event: OnGroupEvent | None,
        on_events: OnGroupEvents | None,
        auto_ack: bool,
        wake: Callable[[], None],
        note: Callable[[], None],
        wake_reader: Callable[[], None],
    ) -> None:
        """``wake`` makes the protocol thread act at once, ``note`` lets it report what has been settled when that is
        due, and ``wake_reader`` reads where there is room again."""
        self.callback_errors = 0
        self.park_failures = 0
        self._handler = handler
        self._lock = lock
        self._on_event, self._on_events = on_event, on_events
        self._auto_ack = auto_ack
        self._memberships = memberships
        self._wake, self._note = wake, note
        self._wake_reader = wake_reader
        self._limit = config.BATCH_EVENTS_MAX
        self._timeout_s: float = options.handler_timeout or float("inf")
        # With one dispatcher that settles whole batches there is no other thread to be exclusive against.
        self._is_always_exclusive = not auto_ack or options.concurrency > 1
        self._iterations = 0
        self._getting = GettingTurns(self._turns)
        self._is_closed = False
        self._is_suspended = False
        self._calls: set[HandlerCall] = set()
        has_callback = on_event is not None or on_events is not None
        self._threads = [
            threading.Thread(target=self._run, name=f"heliograph-group-dispatcher-{number}", daemon=True)
            for number in range(options.concurrency if has_callback else 0)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, *, timeout_s: float) -> None:
        """End the threads after what they are doing now; the one that calls this is not waited for."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._getting.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for call, event in self._with_user() if self._threads else ():
                LOG.error("Shared subscription: closed while the callback has offset %d of %s, which comes again "
                          "elsewhere", event.offset, event.topic)  # fmt: skip
                self._abandon(call, time.monotonic())

    # -- the threads

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                self._call(call)
            finally:
                self._ended(call)

    @property
    def _is_exclusive(self) -> bool:
        return self._is_always_exclusive or self._iterations > 1

    def _next(self, check: Callable[[], None] = lambda: None, until: float = math.inf) -> HandlerCall | None:
        """Wait for events; None when the time is over or it is closed.  Raises what ``check`` raises."""
        while True:
            with self._lock:
                found = self._wait_for_events(check, until)
                if found is None:
                    return None
                loan, batch = found
                if not loan.delivery.is_overdue(batch[0]):
                    call = HandlerCall(loan, batch, time.monotonic(), is_exclusive=self._is_exclusive)
                    self._calls.add(call)
                    if len(batch) > 1:
                        self._note()
                    return call
            self._park(loan, batch[0], _CRASHED.format(batch[0].attempt))
            with self._lock:
                self._after_settling(loan)

    def _wait_for_events(self, check: Callable[[], None], until: float) -> Batch | None:
        while not self._is_closed:
            now = time.monotonic()
            # Several loops share what there is, event by event; so does one that settles each event by itself.
            limit = 1 if self._iterations > 1 or (self._iterations and not self._auto_ack) else self._limit
            found = self._handler.next_batch(now, limit, is_exclusive=self._is_exclusive)
            if found is not None:
                return found
            check()
            if now >= until:
                return None
            self._lock.wait(min(max(self._handler.next_retry() - now, 0.001), _IDLE_S, until - now))
        return None

    def _returned(self, call: HandlerCall) -> None:
        """The user has returned: from now on only this thread settles what the call had."""
        with self._lock:
            self._calls.discard(call)

    def _ended(self, call: HandlerCall) -> None:
        """The user has returned; perhaps from a call that was given up, and then a thread is free again."""
        with self._lock:
            self._calls.discard(call)
            if self._is_suspended and not self._is_closed:
                LOG.warning("Shared subscription: a callback that hung has returned; this member joins again")
                self._is_suspended = False
                self._handler.resume(time.monotonic())
                self._wake()

    def _call(self, call: HandlerCall) -> None:
        if self._on_events is not None:
            self._call_with_all(call, self._on_events)
        else:
            assert self._on_event is not None
            self._call_one_by_one(call, self._on_event)

    def _call_with_all(self, call: HandlerCall, on_events: OnGroupEvents) -> None:
        failure: BaseException | None = None
        try:
            on_events(call.batch)
        except BaseException as error:
            self.callback_errors += 1
            failure = error
            topic = call.batch[0].topic
            LOG.exception("Shared subscription: the callback failed with %d events of %s", len(call.batch), topic)
        self._returned(call)
        if failure is not None:
            self._failed_as_a_whole(call, failure)
        elif self._auto_ack:
            self._settle(call, len(call.batch))

    def _failed_as_a_whole(self, call: HandlerCall, error: BaseException) -> None:
        if not self._auto_ack:
            return  # the user may have settled some of them, and must settle the others
        loan, batch = call.loan, call.batch
        with self._lock:
            if call.is_abandoned:
                return
            if len(batch) > 1:
                loan.delivery.fail_batch(batch, time.monotonic())
                self._after_settling(loan)
                return
            if not call.is_exclusive:
                loan.delivery.break_up(batch)
        self._fail(loan, batch[0], None, f"{type(error).__name__}: {error}")

    def _call_one_by_one(self, call: HandlerCall, on_event: OnGroupEvent) -> None:
        failure = None
        try:
            for event in call.batch:
                if call.place >= len(call.batch) or not self._goes_on(call):
                    break
                on_event(event)
                call.place += 1
        except BaseException as error:
            self.callback_errors += 1
            failure, event = f"{type(error).__name__}: {error}", call.batch[call.place]
            LOG.exception("Shared subscription: the callback failed for %s %r, offset %d of %s, attempt %d",
                          event.table, event.key, event.offset, event.topic, event.attempt)  # fmt: skip
        self._after_batch(call, failure)

    def _goes_on(self, call: HandlerCall) -> bool:
        """Before each event: whether the user may have it."""
        now = time.monotonic()
        if call.is_abandoned or call.loan.delivery.is_stopped or now >= self._handler.lease_end(call.loan.subscription):
            return False
        call.since = now
        return not call.is_abandoned

    def _after_batch(self, call: HandlerCall, failure: str | None) -> None:
        self._returned(call)
        if not self._auto_ack:
            self._leave_to_the_user(call, call.place + (failure is not None))
        elif call.place == len(call.batch):
            self._settle(call, call.place)
        else:
            self._split(call, failure)

    def _leave_to_the_user(self, call: HandlerCall, seen: int) -> None:
        """The user settles what it has seen."""
        with self._lock:
            if seen < len(call.batch) and not call.is_abandoned:
                call.loan.delivery.put_back(call.batch[seen:])
                self._after_settling(call.loan)

    def _split(self, call: HandlerCall, failure: str | None) -> None:
        """Events before `place` are done; the one there failed, or was not delivered; the rest was not."""
        loan, place = call.loan, call.place
        with self._lock:
            if call.is_abandoned:
                self._handler.counters.late += 1
                return
            if not call.is_exclusive:
                loan.delivery.break_up(call.batch[call.settled :])
            for event in call.batch[call.settled : place]:
                loan.delivery.ack(event)
        if failure is not None:
            self._fail(loan, call.batch[place], None, failure)
            place += 1
        with self._lock:
            loan.delivery.put_back(call.batch[place:])
            self._after_settling(loan)

    def settle_done(self) -> None:
        """Under the lock: settle what the user is done with in the middle of a batch, so that it can be reported."""
        for call in self._calls:
            place = call.place
            if self._auto_ack and call.settled < place < len(call.batch) and not call.is_abandoned:
                self._settle(call, place)

    def _settle(self, call: HandlerCall, place: int) -> None:
        """Events of the batch before ``place`` are done."""
        loan = call.loan
        with self._lock:
            if call.is_abandoned:
                self._handler.counters.late += 1
                return
            done = call.batch[call.settled : place]
            if call.is_exclusive:
                for event in done:
                    loan.delivery.ack(event)
            elif done:
                loan.delivery.settle(done, call.batch[place:])
            call.settled = place
            if not self._handler.is_lent(loan):
                self._handler.counters.late += len(done)  # should the partition come back, they count
            self._after_settling(loan)

    # -- callbacks that do not return

    @property
    def hung(self) -> int:
        """Calls that were given up and have not returned."""
        return sum(call.is_abandoned for call in self._calls)

    @property
    def is_calling(self) -> bool:
        """Whether the user is about to get through a batch, so that progress has to be looked for."""
        return self._auto_ack and any(len(call.batch) > 1 for call in self._calls)

    def next_deadline(self) -> float:
        """Under the lock: when `take_back_from_hung` should be called next."""
        calls = [call.since for call in self._calls if not call.is_abandoned]
        if not self._auto_ack and self._timeout_s < float("inf"):
            calls.append(time.monotonic() - 0.9 * self._timeout_s)  # often enough for what is out without a call
        return min(calls, default=float("inf")) + self._timeout_s

    def take_back_from_hung(self, now: float) -> None:
        """Under the lock: events that have been with the user for too long are taken back, and come again.

        When every thread that could deliver them hangs, this member leaves its groups until one has returned.
        """
        for call, event in self._with_user():
            if now - call.since < self._timeout_s:
                continue
            LOG.error("Shared subscription: the program has had offset %d of %s for %.1f s, which is longer than "
                      "[groups] handler_timeout; it is delivered again", event.offset, event.topic,
                      now - call.since)  # fmt: skip
            self._abandon(call, now)
        if not self._auto_ack:
            for loan in self._handler.loans:
                for event in loan.delivery.overstayed(now, self._timeout_s):
                    LOG.error("Shared subscription: offset %d of %s was not settled within [groups] handler_timeout; "
                              "it is delivered again", event.offset, event.topic)  # fmt: skip
                    loan.delivery.time_out(event, now)
        consumers = len(self._threads) or len(self._calls)
        if not self._is_suspended and not self._is_closed and consumers and self.hung >= consumers:
            LOG.error("Shared subscription: all %d threads that handle events hang; this member leaves its groups "
                      "until one returns", consumers)  # fmt: skip
            self._is_suspended = True
            self._handler.suspend(now)

    def _with_user(self) -> list[tuple[HandlerCall, GroupEvent]]:
        """Under the lock: calls that can be taken back, and the event that the user has.

        A call whose last event has been handled is none: its thread is about to settle it, and waits for the lock.
        """
        calls = [(call, call.place) for call in self._calls if not call.is_abandoned]
        return [(call, call.batch[place]) for call, place in calls if place < len(call.batch)]

    def _abandon(self, call: HandlerCall, now: float) -> None:
        """Under the lock.  What was done before counts; what has not been seen goes back."""
        delivery, place = call.loan.delivery, call.place
        if place == len(call.batch):
            return  # it has been handled just now
        call.is_abandoned = True
        if not call.is_exclusive:
            delivery.break_up(call.batch[call.settled :])
        if self._on_events is not None:
            delivery.time_out_batch(call.batch, now)
        else:
            for event in call.batch[call.settled : place] if self._auto_ack else ():
                delivery.ack(event)
            delivery.time_out(call.batch[place], now)
            delivery.put_back(call.batch[place + 1 :])
        self._after_settling(call.loan)

    # -- settling single events

    def ack(self, event: GroupEvent) -> bool:
        with self._lock:
            loan = self._handler.loan_of(event)
            if loan is None:
                self._handler.counters.late += 1
                return False
            is_done = loan.delivery.ack(event)
            self._note_settled(event)
            self._after_settling(loan)
            return is_done

    def nack(self, event: GroupEvent, delay_s: float | None) -> None:
        with self._lock:
            loan = self._handler.loan_of(event)
            if loan is None:
                self._handler.counters.late += 1
                return
            self._note_settled(event)
            self._set_apart(event)
        self._fail(loan, event, delay_s, "refused by the consumer")

    def _set_apart(self, event: GroupEvent) -> None:
        """Under the lock: what would be settled together with others is settled by itself."""
        for call in self._calls:
            with_user = call.batch if self._on_events is not None else call.batch[call.place : call.place + 1]
            if call.is_exclusive or call.is_abandoned or not any(one is event for one in with_user):
                continue
            if self._on_events is None:
                self._share(call)  # later events of the same key wait behind it
            else:
                call.loan.delivery.break_up(call.batch)
                call.is_exclusive = True

    def _note_settled(self, event: GroupEvent) -> None:
        """Under the lock: a program that reads may take its time before it asks for the next event."""
        for call in self._calls if not self._threads and not self._auto_ack else ():
            if call.batch[0] is event:
                call.place = len(call.batch)

    def extend(self, event: GroupEvent) -> bool:
        now = time.monotonic()
        with self._lock:
            loan = self._handler.loan_of(event)
            is_out = loan is not None and loan.delivery.extend(event, now)
            for call in self._calls:
                if not call.is_abandoned and any(one is event for one in call.batch[call.place :]):
                    call.since = now
                    is_out |= self._auto_ack
            self._handler.counters.late += not is_out
            return is_out

    def _fail(self, loan: LoanState, event: GroupEvent, delay_s: float | None, reason: str) -> None:
        with self._lock:
            is_over = not loan.delivery.fail(event, time.monotonic(), delay_s)
        if is_over:
            self._park(loan, event, reason)
        with self._lock:
            self._after_settling(loan)

    def _park(self, loan: LoanState, event: GroupEvent, reason: str) -> None:
        try:
            self._memberships.group_of(loan.subscription).letters.park(event, reason)
        except (LogError, Closed) as error:
            LOG.warning("Shared subscription: offset %d cannot be parked now: %s", event.offset, error)
            with self._lock:
                self.park_failures += 1
                loan.delivery.postpone(event, time.monotonic() + _PARK_RETRY_S)
            return
        with self._lock:
            loan.delivery.parked(event)

    def _after_settling(self, loan: LoanState) -> None:
        """Under the lock: wake the threads that wait for room, for an object, or for the end of the partition."""
        if loan.delivery.is_stopped or loan.is_complete:
            self._wake()
        elif loan.delivery.take_relief():
            self._wake_reader()
        self._note()
        self._lock.notify_all()

    # -- iterating

    def events(self, check: Callable[[], None]) -> Iterator[GroupEvent]:
        """Events for the user's own loop.  With ``auto_ack`` each is done when the next one is asked for."""
        return cast("Iterator[GroupEvent]", self._turns(check, lambda: math.inf))

    def get(self, check: Callable[[], None], timeout_s: float | None) -> GroupEvent | None:
        """The next event of an iteration that goes on with every call; None when the time is over or it is closed."""
        return self._getting.next(check, timeout_s)

    def _turns(self, check: Callable[[], None], until: Callable[[], float]) -> Turns:
        if self._threads:
            raise UsageError("this subscriber calls back; make one without on_event to iterate")
        self._count_iteration(1)
        try:
            while not self._is_closed:
                if (call := self._next(check, until())) is None:
                    yield None
                    continue
                try:
                    if self._auto_ack:
                        yield from self._one_after_the_other(call)
                    else:
                        yield from call.batch
                except Unseen:
                    return self._unsee(call)
                finally:
                    self._ended(call)
        finally:
            self._count_iteration(-1)

    def _unsee(self, call: HandlerCall) -> None:
        """What a program that settles by itself was about to get goes back."""
        with self._lock:
            if not self._auto_ack and call.loan.delivery.extend(call.batch[0], time.monotonic()):
                call.loan.delivery.put_back(call.batch)
                self._after_settling(call.loan)

    def _count_iteration(self, step: int) -> None:
        with self._lock:
            self._iterations += step
            if self._iterations > 1:
                for call in self._calls:
                    self._share(call)

    def _share(self, call: HandlerCall) -> None:
        """Under the lock: a loop that had a batch to itself keeps the event that it has, and others get the rest."""
        if call.is_exclusive or call.is_abandoned:
            return
        delivery, place, rest = call.loan.delivery, call.place, call.batch[call.place + 1 :]
        delivery.break_up(call.batch[call.settled :])
        for event in call.batch[call.settled : place]:
            delivery.ack(event)
        del call.batch[place + 1 :]
        call.settled, call.is_exclusive = place, True
        delivery.put_back(rest)
        self._after_settling(call.loan)

    def _one_after_the_other(self, call: HandlerCall) -> Iterator[GroupEvent]:
        try:
            while self._has_next(call):
                yield call.batch[call.place]
                call.place += 1
        finally:
            # Leaving the loop in the middle leaves its last event undone: the user may have failed in it.
            self._after_batch(call, None)

    def _has_next(self, call: HandlerCall) -> bool:
        with self._lock:  # `_share` may take what comes next
            return call.place < len(call.batch) and self._goes_on(call)
