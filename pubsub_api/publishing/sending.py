"""Handing frames to the driver, and keeping what it says of them: that it cannot send, or that it may not."""

from __future__ import annotations

import logging
import time
from collections import deque

from pubsub_api.core.errors import DriverError, NotPermitted
from pubsub_api.core.sending.publisher import Outgoing, PublisherCore
from pubsub_api.driver import PublisherApi, SendRefused
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class FrameSender:
    """One handle of a driver.  The owner calls everything under its lock, except `report`."""

    __slots__ = (
        "_log_refusal", "_name", "_not_permitted", "_refusals", "end", "events_refused", "last_failure",
        "send_failures",
    )  # fmt: skip

    def __init__(self, name: str, end: PublisherApi) -> None:
        self._name = name
        self.end = end
        self.send_failures = 0
        self.last_failure: DriverError | None = None
        """Why the newest frames were not taken; None when they were."""
        self.events_refused = 0
        self._refusals: deque[SendRefused] = deque()
        """What the driver has reported and the core does not know yet."""
        self._not_permitted: NotPermitted | None = None
        self._log_refusal = RateLimitedLog(LOG)

    def send(self, out: list[Outgoing]) -> None:
        """Send frames.  Never raises: those that the transport does not take are in the cache, for repair."""
        if not out:
            return
        try:
            if len(out) == 1:
                self.end.send(*out[0])
            else:
                self.end.send_many(out)
        except DriverError as error:
            self.refused(len(out), error)
        else:
            if self.last_failure is not None:
                self.accepted()

    def refused(self, count: int, error: DriverError) -> None:
        """The transport did not take frames."""
        self.send_failures += count
        if self.last_failure is None:
            LOG.warning("Publisher %s cannot send: %s. Frames are kept for repair.", self._name, error)
        self.last_failure = error

    def accepted(self) -> None:
        """The transport takes frames again."""
        LOG.info("Publisher %s sends again after %d refused frames.", self._name, self.send_failures)
        self.last_failure = None

    def report(self, refusal: SendRefused) -> None:
        """The driver says that a frame may not be sent.  On any thread, also in the middle of a call of ours."""
        self._refusals.append(refusal)

    @property
    def has_untold(self) -> bool:
        """The newest frames were refused, or some refusals were not told yet.  Needs no lock."""
        return bool(self._refusals) or self.last_failure is not None or self._not_permitted is not None

    def take_refusals(self, core: PublisherCore) -> None:
        """Have the core forget what may not be sent, before a query is answered from its cache."""
        while self._refusals:
            refusal = self._refusals.popleft()
            events = core.refuse(refusal.frame, time.monotonic())
            self.events_refused += events
            self._log_refusal(
                "Publisher %s may not send: %s. %d events are dropped.", self._name, refusal.reason, events
            )
            if events:
                self._not_permitted = NotPermitted(f"publisher {self._name}: {refusal.reason}")

    def take_not_permitted(self) -> NotPermitted | None:
        """The newest refusal for lack of permission since the last call."""
        error, self._not_permitted = self._not_permitted, None
        return error
