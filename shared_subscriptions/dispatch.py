"""Calling the user: dispatcher threads, or the user's own thread when it iterates.

The fence at delivery is here.  Before every batch, and before every event of it, the lease must run and the stream must
not have been asked back; what is left of a batch then returns to the lanes, unseen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from durable_log.errors import LogError
from pubsub_api.errors import Closed, UsageError
from shared_subscriptions.core.events import GroupEvent
from shared_subscriptions.core.handler import Handler, LoanState
from shared_subscriptions.parking import DeadLetters

LOG = logging.getLogger(__name__)

OnEvent = Callable[[GroupEvent], None]
OnEvents = Callable[[Sequence[GroupEvent]], None]
Batch = tuple[LoanState, list[GroupEvent]]

_IDLE_S = 0.5
_PARK_RETRY_S = 1.0


class Dispatch:
    def __init__(
        self,
        handler: Handler,
        lock: threading.Condition,
        options: Any,
        *,
        on_event: OnEvent | None,
        on_events: OnEvents | None,
        auto_ack: bool,
        letters_of: Callable[[int], DeadLetters],
        wake: Callable[[], None],
    ) -> None:
        """``wake`` makes the protocol thread report what has been settled."""
        self.callback_errors = 0
        self.park_failures = 0
        self._handler = handler
        self._lock = lock
        self._on_event, self._on_events = on_event, on_events
        self._auto_ack = auto_ack
        self._letters_of = letters_of
        self._wake = wake
        self._limit: int = options.batch_events_max
        # With one dispatcher that settles whole batches there is nobody to be exclusive against.
        self._is_exclusive = not auto_ack or options.concurrency > 1
        self._is_closed = False
        has_callback = on_event is not None or on_events is not None
        self._threads = [
            threading.Thread(target=self._run, name=f"heliograph-group-dispatcher-{number}", daemon=True)
            for number in range(options.concurrency if has_callback else 0)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads after what they are doing now; the one that calls this is not waited for."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    # -- the threads

    def _run(self) -> None:
        while (found := self._next()) is not None:
            self._call(*found)

    def _next(self, check: Callable[[], None] = lambda: None, limit: int | None = None) -> Batch | None:
        """Wait for events; None when it is closed."""
        with self._lock:
            while not self._is_closed:
                now = time.monotonic()
                found = self._handler.next_batch(now, limit or self._limit, is_exclusive=self._is_exclusive)
                if found is not None:
                    return found
                check()
                self._lock.wait(min(max(self._handler.next_retry() - now, 0.001), _IDLE_S))
            return None

    def _call(self, loan: LoanState, batch: list[GroupEvent]) -> None:
        if self._on_events is not None:
            self._call_with_all(loan, batch, self._on_events)
        else:
            assert self._on_event is not None
            self._call_one_by_one(loan, batch, self._on_event)

    def _call_with_all(self, loan: LoanState, batch: list[GroupEvent], on_events: OnEvents) -> None:
        try:
            on_events(batch)
        except Exception as error:
            self.callback_errors += 1
            LOG.exception("Shared subscription: the callback failed with %d events of %s", len(batch), batch[0].topic)
            self._failed_as_a_whole(loan, batch, error)
            return
        if self._auto_ack:
            self._settled(loan, batch)

    def _failed_as_a_whole(self, loan: LoanState, batch: list[GroupEvent], error: Exception) -> None:
        if not self._auto_ack:
            return  # the user may have settled some of them, and must settle the others
        with self._lock:
            if len(batch) > 1:
                loan.lanes.fail_batch(batch, time.monotonic())
                self._after_settling(loan)
                return
            if not self._is_exclusive:
                loan.lanes.break_up(batch)
        self._fail(loan, batch[0], None, f"{type(error).__name__}: {error}")

    def _call_one_by_one(self, loan: LoanState, batch: list[GroupEvent], on_event: OnEvent) -> None:
        lanes, lease_end = loan.lanes, self._handler.lease_end
        place, failure = 0, None
        try:
            for event in batch:
                if lanes.is_stopped or time.monotonic() >= lease_end(loan.subscription):
                    break
                on_event(event)
                place += 1
        except Exception as error:
            self.callback_errors += 1
            failure, event = f"{type(error).__name__}: {error}", batch[place]
            LOG.exception("Shared subscription: the callback failed at offset %d of %s, attempt %d", event.offset,
                          event.topic, event.attempt)  # fmt: skip
        if not self._auto_ack:
            self._leave_to_the_user(loan, batch, place + (failure is not None))
        elif place == len(batch):
            self._settled(loan, batch)
        else:
            self._split(loan, batch, place, failure)

    def _leave_to_the_user(self, loan: LoanState, batch: list[GroupEvent], seen: int) -> None:
        """The user settles what it has seen."""
        if seen < len(batch):
            with self._lock:
                loan.lanes.put_back(batch[seen:])
                self._after_settling(loan)

    def _split(self, loan: LoanState, batch: list[GroupEvent], place: int, failure: str | None) -> None:
        """Events before ``place`` are done; the one there failed, or was not delivered; the rest was not."""
        with self._lock:
            if not self._is_exclusive:
                loan.lanes.break_up(batch)
            for event in batch[:place]:
                self._ack(loan, event)
        if failure is not None:
            self._fail(loan, batch[place], None, failure)
            place += 1
        with self._lock:
            loan.lanes.put_back(batch[place:])
            self._after_settling(loan)

    def _settled(self, loan: LoanState, batch: list[GroupEvent]) -> None:
        with self._lock:
            if self._is_exclusive:
                for event in batch:
                    self._ack(loan, event)
            else:
                loan.lanes.settle(batch)
            if not self._handler.is_lent(loan):
                self._handler.note_late(loan, len(batch))
            self._after_settling(loan)

    # -- settling single events

    def ack(self, event: GroupEvent) -> bool:
        with self._lock:
            loan = self._handler.loan_of(event)
            if loan is None:
                self._handler.counters.late += 1
                return False
            is_done = self._ack(loan, event)
            self._after_settling(loan)
            return is_done

    def nack(self, event: GroupEvent, delay_s: float | None) -> None:
        with self._lock:
            loan = self._handler.loan_of(event)
            if loan is None:
                self._handler.counters.late += 1
                return
        self._fail(loan, event, delay_s, "refused by the consumer")

    def _ack(self, loan: LoanState, event: GroupEvent) -> bool:
        return loan.lanes.ack(event)

    def _fail(self, loan: LoanState, event: GroupEvent, delay_s: float | None, reason: str) -> None:
        with self._lock:
            is_over = not loan.lanes.fail(event, time.monotonic(), delay_s)
        if is_over:
            self._park(loan, event, reason)
        with self._lock:
            self._after_settling(loan)

    def _park(self, loan: LoanState, event: GroupEvent, reason: str) -> None:
        try:
            self._letters_of(loan.subscription).park(event, reason)
        except (LogError, Closed) as error:
            LOG.warning("Shared subscription: offset %d cannot be parked now: %s", event.offset, error)
            with self._lock:
                self.park_failures += 1
                loan.lanes.postpone(event, time.monotonic() + _PARK_RETRY_S)
            return
        with self._lock:
            loan.lanes.parked(event)

    def _after_settling(self, loan: LoanState) -> None:
        """Under the lock: wake whoever waits for room, for a lane, or for the end of the stream."""
        if loan.lanes.is_stopped:
            self._wake()
        self._lock.notify_all()

    # -- iterating

    def events(self, check: Callable[[], None]) -> Iterator[GroupEvent]:
        """Events for the user's own loop.  With ``auto_ack`` each is done when the next one is asked for."""
        if self._threads:
            raise UsageError("this subscriber calls back; make one without on_event to iterate")
        while (found := self._next(check, 1 if not self._auto_ack else None)) is not None:
            loan, batch = found
            if not self._auto_ack:
                yield from batch
                continue
            yield from self._one_after_the_other(loan, batch)

    def _one_after_the_other(self, loan: LoanState, batch: list[GroupEvent]) -> Iterator[GroupEvent]:
        done = 0
        try:
            for event in batch:
                if loan.lanes.is_stopped or time.monotonic() >= self._handler.lease_end(loan.subscription):
                    break
                yield event
                done += 1
        finally:
            # Leaving the loop in the middle leaves its last event undone: the user may have failed in it.
            if done == len(batch):
                self._settled(loan, batch)
            else:
                self._split(loan, batch, done, None)
