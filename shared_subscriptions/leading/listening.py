"""The door of a process that leads groups: one listening socket, and the connections of members of all its groups.

A peer that connects is a stranger until its first valid message, and costs little until then.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pubsub_api.errors import FrameError
from shared_subscriptions.config import MESSAGE_BYTES_MAX
from shared_subscriptions.core import messages as m
from shared_subscriptions.leading.group import Leading
from shared_subscriptions.sockets import MessageConnection, listen

LOG = logging.getLogger(__name__)

_CONNECTIONS_MAX = 4096
_STRANGERS_MAX = 64
"""Connections on which nothing valid has come yet.  The oldest of them makes room for a new one."""
_STRANGER_S = 5.0
"""How long one may remain so: a member greets at once."""
_ACCEPT_PAUSE_S = 1.0
"""Before the next attempt to accept, when the process has no descriptor left."""


class Listening:
    """Owned by the leader's thread.  Messages go to the groups that they name."""

    def __init__(
        self, selector: selectors.BaseSelector, groups: Mapping[str, Leading], key: bytes, options: Any
    ) -> None:
        self.endpoint = ""
        """Where members reach this process; empty while it does not listen."""
        self.counters: Counter[str] = Counter()
        self.strangers: dict[MessageConnection, float] = {}
        """Since when, the oldest first."""
        self._selector = selector
        self._groups = groups
        self._key = key
        self._options = options
        self._listener: socket.socket | None = None
        self._accept_at = 0.0
        """Accepting pauses until then; 0 when it does not."""
        self._borrowers: dict[MessageConnection, dict[str, Leading]] = {}
        """Connection -> borrowers that were heard of on it, with the group of each."""

    def open(self) -> str:
        """Listen, if it does not yet, and return where.  Raises OSError."""
        if self._listener is None:
            self._listener = listen(self._options.bind_address)
            self._selector.register(self._listener, selectors.EVENT_READ, None)
            host = self._options.advertised_address or self._options.bind_address
            self.endpoint = f"{host}:{self._listener.getsockname()[1]}"
        return self.endpoint

    def close(self) -> None:
        for connection in list(self._borrowers):
            self._hang_up(connection)
        if self._listener is not None:
            if not self._accept_at:
                self._selector.unregister(self._listener)
            self._accept_at = 0.0
            self._listener.close()
            self._listener = None
            self.endpoint = ""

    # -- strangers

    def accept(self) -> None:
        assert self._listener is not None
        try:
            end, _ = self._listener.accept()
        except OSError as error:
            self.counters["socket_errors"] += 1
            LOG.debug("Groups: a member's connection could not be accepted: %s", error)
            # A connection that waits to be accepted makes the selector return at once, again and again.
            if self._listener is not None and not self._accept_at:
                self._selector.unregister(self._listener)
                self._accept_at = time.monotonic() + _ACCEPT_PAUSE_S
            return
        if len(self._borrowers) >= _CONNECTIONS_MAX:
            self.counters["refused_connections"] += 1
            end.close()
            return
        if len(self.strangers) >= _STRANGERS_MAX:
            self._turn_away(next(iter(self.strangers)))
        connection = MessageConnection(end, self._key, bytes_max=MESSAGE_BYTES_MAX, is_stranger=True)
        self._borrowers[connection] = {}
        self.strangers[connection] = time.monotonic()
        self._selector.register(end, selectors.EVENT_READ, connection)

    def look_after_strangers(self, now: float) -> None:
        for connection in [one for one, since in self.strangers.items() if now - since > _STRANGER_S]:
            self._turn_away(connection)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            if self._listener is not None:
                self._selector.register(self._listener, selectors.EVENT_READ, None)

    def _turn_away(self, connection: MessageConnection) -> None:
        self.counters["strangers_turned_away"] += 1
        self._hang_up(connection)

    # -- members

    def serve(self, connection: MessageConnection) -> set[Leading]:
        """Hear what has come on a connection.  Returns the groups that it concerns."""
        connection.flush()
        try:
            messages = [m.decode_to_leader(body) for body in connection.receive()]
        except FrameError as error:
            self.counters["bad_messages"] += 1
            LOG.warning("Groups: a member's connection was closed: %s", error)
            self._hang_up(connection)
            return set()
        now = time.monotonic()
        if messages:
            self.strangers.pop(connection, None)
        concerned = set()
        for name, message in messages:
            group = self._groups.get(name)
            if isinstance(message, m.PingAll):
                self._answer_all(connection, message, now)
            elif group is not None:
                self._borrowers[connection][message.borrower] = group  # to be named as lost, if it is not led here
                if group.leader is None:
                    continue
                group.homes[message.borrower] = connection
                group.hear(group.leader, message, now)
                concerned.add(group)
        self._after_io(connection)
        return concerned

    def _answer_all(self, connection: MessageConnection, message: m.PingAll, now: float) -> None:
        """Renew the leases of all borrowers that were heard of on this connection; those not renewed are named once."""
        known = self._borrowers[connection]
        for borrower in message.gone:
            known.pop(borrower, None)
        lost = [one for one, group in known.items() if group.leader is None or not group.leader.hear_of(one, now)]
        for borrower in lost:
            del known[borrower]
        if not connection.send(m.encode(m.PingAllResponse(answers=message.seq, lost=lost))):
            connection.close()  # a member that does not hear whom it has lost must not believe that it has not

    def send(self, group: Leading) -> None:
        """Send what a group has to say.  One that is not led here any more loses its connections after that."""
        used = set()
        for message in group.take_messages():
            connection = group.homes.get(message.borrower)
            if connection is not None:
                connection.send(m.encode(message))
                used.add(connection)
        if group.leader is None:
            used |= set(group.homes.values())
        for connection in used:
            connection.flush()
            if group.leader is None:
                self._hang_up(connection)
            else:
                self._after_io(connection)

    def _after_io(self, connection: MessageConnection) -> None:
        if connection not in self._borrowers:
            return
        if not connection.is_open:
            self._hang_up(connection)
            return
        writing = selectors.EVENT_WRITE if connection.wants_to_write else 0
        self._selector.modify(connection.end, selectors.EVENT_READ | writing, connection)

    def _hang_up(self, connection: MessageConnection) -> None:
        """The connection is over.  Whether its members live is for their leases to say."""
        self.strangers.pop(connection, None)
        borrowers = self._borrowers.pop(connection, None)
        if borrowers is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.end)
        connection.close()
        for borrower, group in borrowers.items():
            if group.homes.get(borrower) is connection:
                del group.homes[borrower]
