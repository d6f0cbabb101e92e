"""A member's way to the leader of one group."""

from __future__ import annotations

import contextlib
import logging
import selectors

from pubsub_api.errors import FrameError
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.candidate import LeaderRecord
from shared_subscriptions.sockets import Connection

LOG = logging.getLogger(__name__)

RECONNECT_S = 0.2


class LeaderLink:
    """Owned by the member's protocol thread.  Messages that cannot be sent now are dropped: the protocol repeats them.

    Only ``leader`` may be set from another thread.
    """

    def __init__(self, selector: selectors.BaseSelector, *, bytes_max: int) -> None:
        self.leader: LeaderRecord | None = None
        """Whom to talk to."""
        self.bad_messages = 0
        self.link_failures = 0
        self._selector = selector
        self._bytes_max = bytes_max
        self._connection: Connection | None = None
        self._peer = ""
        self._retry_at = 0.0

    def maintain(self, now: float) -> bool:
        """Connect to the leader that is known, if that is to be done.  True when it was begun."""
        leader = self.leader
        if self._connection is not None and (leader is None or leader.id != self._peer):
            self.close()
            self._retry_at = 0.0
        if self._connection is not None or leader is None or now < self._retry_at:
            return False
        self._retry_at = now + RECONNECT_S
        try:
            self._connection = Connection.to(leader.endpoint, leader.key, bytes_max=self._bytes_max)
        except (OSError, ValueError) as error:
            self.link_failures += 1
            LOG.debug("The leader at %s cannot be reached: %s", leader.endpoint, error)
            return False
        self._peer = leader.id
        self._selector.register(self._connection.end, selectors.EVENT_READ, self)
        return True

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def send(self, message: m.ToLeader) -> None:
        if self._connection is not None:
            self._connection.send(m.encode(message))

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()
            self._after_io()

    def receive(self) -> list[m.ToBorrower]:
        """What the leader says.  A connection on which something else comes is closed."""
        if self._connection is None:
            return []
        self._connection.flush()
        try:
            messages = [m.decode_to_borrower(body) for body in self._connection.receive()]
        except FrameError as error:
            self.bad_messages += 1
            LOG.warning("The connection to the leader at %s was closed: %s", self._peer, error)
            messages = []
            self._connection.close()
        self._after_io()
        return messages

    def _after_io(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if not connection.is_open:
            self.link_failures += 1
            self.close()
            return
        writing = selectors.EVENT_WRITE if connection.wants_to_write else 0
        self._selector.modify(connection.end, selectors.EVENT_READ | writing, self)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._connection.end)
            self._connection.close()
            self._connection = None
