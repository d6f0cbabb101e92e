"""The protocol thread of a subscriber: it talks to the leaders of its groups, and drives the clock of the core."""

from __future__ import annotations

import functools
import logging
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.sockets.waking import Waker
from shared_subscriptions import config
from shared_subscriptions.consuming.dispatch import Dispatch
from shared_subscriptions.consuming.links import LeaderLink, LeaderLinks
from shared_subscriptions.consuming.memberships import Memberships
from shared_subscriptions.core.consuming.handler import Handler
from shared_subscriptions.core.messages import PingAllResponse
from shared_subscriptions.leading.group import Leading

LOG = logging.getLogger(__name__)

_IDLE_S = 5.0
"""The thread is woken when there is something to do; this is the longest wait should a wake-up be missing."""


class ProtocolThread:
    """Owns the connections to leaders.  Everything else it does with the core is done under the subscriber's lock."""

    def __init__(
        self,
        handler: Handler,
        lock: threading.Condition,
        memberships: Memberships,
        *,
        progress_interval_s: float,
        look_now: Callable[[Sequence[Leading]], None],
    ) -> None:
        """``look_now`` is told of groups whose leader cannot be reached."""
        self.errors = 0
        self.is_closing = False
        """Threads wait for the last answers of leaders."""
        self._handler = handler
        self._lock = lock
        self._memberships = memberships
        self._progress_interval_s = progress_interval_s
        self._look_now = look_now
        self._is_idle = False
        """It sleeps until something happens."""
        self._is_stopping = False
        self._expired_told = 0
        self._log_expired = RateLimitedLog(LOG)
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker)
        self.wake = self._waker.wake
        self.links = LeaderLinks(self._selector, bytes_max=config.MESSAGE_BYTES_MAX)
        self._thread = threading.Thread(target=self._run, name="heliograph-group-protocol", daemon=True)

    def start(self, dispatch: Dispatch, wake_reader: Callable[[], None]) -> None:
        self._dispatch, self._wake_reader = dispatch, wake_reader
        self._thread.start()

    def stop(self) -> None:
        """End after one more round, which says what is to be said."""
        self._is_stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Wait for the thread, if it runs, and let go of everything."""
        if self._thread.is_alive():
            self._thread.join()
        self._waker.close()
        self._selector.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_stopping  # the last round is one that begins after the last thing was said
            try:
                self._exchange()
                if not is_last:
                    self._listen()
            except Exception:
                self.errors += 1
                LOG.exception("Shared subscription: talking to a leader failed; it goes on")
        self.links.close()

    def _listen(self) -> None:
        """Wait for what leaders say, until something is due."""
        now = time.monotonic()
        with self._lock:
            deadline = min(self._handler.next_deadline(), self._dispatch.next_deadline())
            if self._dispatch.is_calling:
                deadline = min(deadline, now + self._progress_interval_s)
            else:
                self._is_idle = not self._handler.has_news
        deadline = min([deadline, now + _IDLE_S, *(link.next_deadline() for link in self.links.all)])
        is_quiet = True
        while is_quiet and not self._is_stopping:
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                if key.data is self._waker:
                    self._waker.clear()
                    is_quiet = False
                else:
                    is_quiet &= self._hear(key.data)
            is_quiet &= time.monotonic() < deadline

    def note_progress(self) -> None:
        """Under the lock: there is something to report, or will be soon."""
        if self._is_idle:
            self._is_idle = False
            self._waker.wake()

    def _exchange(self) -> None:
        """Let time pass in the core, and send what it wants to say."""
        self._is_idle = False
        now = time.monotonic()
        with self._lock:
            moved = self._memberships.take_moved()
        fresh = self.links.maintain(moved, now)
        with self._lock:
            if fresh:
                self._ask_at_once(fresh, now)
            self._dispatch.settle_done()
            self._dispatch.take_back_from_hung(now)
            self._handler.poll(now)
            messages = [
                (self._memberships.name_of(number), said, self._ping_s(number))
                for number, said in self._handler.take_messages(now)
            ]
            self._note_ended()
            self._warn_of_expired()
            if messages or self.is_closing:
                self._lock.notify_all()
        for name, message, ping_s in messages:
            link = self.links.of(name)
            if link is not None:
                link.send(name, message, ping_s=ping_s)
        for link in self.links.all:
            link.ping_all(now, self._changes, functools.partial(self._speaks_on, link))
            link.flush()

    def _ping_s(self, subscription: int) -> float:
        borrower = self._handler.agent.borrower(subscription)
        return float("inf") if borrower is None else borrower.ping_s

    def _ask_at_once(self, names: set[str], now: float) -> None:
        for number in self._handler.agent.subscriptions:
            if self._memberships.name_of(number) in names:
                self._handler.agent.on_leader_changed(number, now)

    def _note_ended(self) -> None:
        """Under the lock: forget subscriptions that are over, and remember why those ended that were not asked to."""
        for number, reason in self._handler.ended.items():
            LOG.warning("Group %s: %s.", self._memberships.name_of(number), reason)
            self._memberships.destroyed.add(self._memberships.name_of(number))
        if self._handler.ended:
            self._handler.ended.clear()
            self._lock.notify_all()
        self._memberships.forget_ended(self._handler.subscriptions)

    def _warn_of_expired(self) -> None:
        """Under the lock: say that retention was faster than the group."""
        expired = self._handler.counters.expired
        if expired > self._expired_told:
            self._expired_told = expired
            self._log_expired(
                "Shared subscription: retention has dropped %d offsets before they were delivered; as many events of "
                "the group are lost at most. It keeps too little, or the group is too slow.", expired,
            )  # fmt: skip

    def _hear(self, link: LeaderLink) -> bool:
        """Hear what has come on a link; True when leases were renewed, and nothing else."""
        messages = link.receive()
        if not link.is_connected:
            self._look_now([self._memberships.groups[name].leading for name in link.groups])
        if not messages:
            return False
        now = time.monotonic()
        with self._lock:
            for message in messages:
                if isinstance(message, PingAllResponse):
                    self._renew_all(link, message, now)
                    continue
                number = self._handler.agent.subscription_of(message.borrower)
                if number is not None:
                    self._handler.on_message(number, message, now)
            is_quiet = all(isinstance(message, PingAllResponse) for message in messages)
            if not is_quiet:
                self._lock.notify_all()
                self._wake_reader()
        return is_quiet

    def _renew_all(self, link: LeaderLink, answer: PingAllResponse, now: float) -> None:
        asked_at, renewed = link.heard(answer)
        if not link.is_known(self._changes):
            renewed = [borrower for borrower in renewed if self._speaks_on(link, borrower)]
        self._handler.agent.on_heard_of(renewed, asked_at, now)

    @property
    def _changes(self) -> int:
        """While it stays the same, the borrowers that have spoken on a link are there, and led at its other end."""
        return self._handler.agent.changes + self.links.moves

    def _speaks_on(self, link: LeaderLink, borrower: str) -> bool:
        """Whether a borrower is there, and its group is led at the other end of the link."""
        with self._lock:
            number = self._handler.agent.subscription_of(borrower)
            return number is not None and self.links.of(self._memberships.name_of(number)) is link
