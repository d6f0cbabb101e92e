"""Cuts connections of a publisher whose key is no longer allowed, or that cost more memory than their share.

libzmq limits the parts of a message but not the message, keeps subscriptions as long as the connection, and limits the
number of queued answers but not their size.  So the bytes of each connection are counted from outside (`connections`),
every `LOOK_INTERVAL_S` while there are not very many connections:

    in      bytes received - bytes read as questions - `_FREE_BYTES_PER_S` for as long as the connection lasts
    out     answers given to libzmq - bytes that the other end has acknowledged

The sum is what a peer holds.  A peer that holds more than its share of ``peers_bytes_max`` is cut; if all together hold
more than ``peers_bytes_max``, those that hold most are cut.  Subscriptions are never subtracted, because they stay in
memory.  While an asker holds half of its share, its next replies are not made yet (`answers`).  An asker that takes
nothing for ``link_timeout`` is cut, so that peers that do not read cannot use up the memory for those that do.

When the process runs out of descriptors, the youngest connections are cut, before libzmq would take the last
descriptor.  The publisher's service thread does all this.  A cut costs an honest peer one reconnection.
"""

from __future__ import annotations

import logging
import pathlib
import time

from oslo_config import cfg

from heliograph_drivers.pubsub.zmq.access import descriptors
from heliograph_drivers.pubsub.zmq.access.allowed_keys import LOOK_INTERVAL_S as KEYS_INTERVAL_S
from heliograph_drivers.pubsub.zmq.access.allowed_keys import AllowedKeys
from heliograph_drivers.pubsub.zmq.access.connections import AcceptedConnection, Connections
from heliograph_drivers.pubsub.zmq.options import GROUP, peer_bytes_max
from pubsub_api import config
from pubsub_api.driver_kit import Tally
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
"""A flood may cost as much memory as arrives in this time, before it is noticed."""
_SCARCE_INTERVAL_S = 0.02
"""The interval while descriptors are scarce: waiting connections take those that become free."""
_LOOK_COST_S = 0.0005
"""Added to the interval for each descriptor, so that the checks take a few percent of a core at most."""
_FREE_BYTES_PER_S = 64
"""For heartbeats, and for filters that come and go.  A peer that sends more of them is cut once in hours or days."""


class Account:
    """The bytes that one connection costs."""

    __slots__ = ("_acked", "_progress", "_queued", "_read", "connection", "since")

    def __init__(self, connection: AcceptedConnection, now: float) -> None:
        self.connection = connection
        self.since = self._progress = now
        self._read = 0
        self._queued = 0
        self._acked = 0

    def add_read(self, size: int) -> None:
        """Count a message of this peer that was read."""
        self._read += size

    def add_queued(self, size: int, now: float) -> None:
        """Count an answer to this peer that was given to libzmq."""
        if self._queued <= self._acked:
            self._progress = now  # it had taken all earlier answers
        self._queued += size

    def measure(self, now: float) -> None:
        connection = self.connection
        connection.measure()
        # A peer cannot collect credit, neither by framing that is counted twice, nor by bytes that are no answer.
        self._read = min(self._read, connection.received)
        self._queued = max(self._queued, connection.acked) if connection.is_measured else self._queued
        if connection.acked != self._acked:
            self._acked, self._progress = connection.acked, now

    def unread(self, now: float) -> int:
        return max(0, self.connection.received - self._read - int(_FREE_BYTES_PER_S * (now - self.since)))

    @property
    def unsent(self) -> int:
        """Answers that the peer has not taken, as of the last `measure`."""
        return max(0, self._queued - self._acked) if self.connection.is_measured else 0

    def held(self, now: float) -> int:
        return self.unread(now) + self.unsent

    def is_stalled(self, now: float, patience_s: float) -> bool:
        """Whether it has left answers unread for longer than ``patience_s``, without taking any."""
        return self.unsent > 0 and now - self._progress > patience_s


class PeerLimits:
    """See the module's description.  Use it from the service thread."""

    def __init__(self, conf: cfg.ConfigOpts, allowed: AllowedKeys | None, tally: Tally) -> None:
        self.name = "a publisher"
        """The publisher's name in log lines."""
        self._peer_bytes_max = peer_bytes_max(conf[GROUP])
        self._peers_bytes_max: int = conf[GROUP].peers_bytes_max
        self._patience_s: float = conf[config.GROUP].link_timeout
        self._allowed = allowed
        self._tally = tally
        self._connections = Connections()
        self._accounts: dict[int, Account] = {}
        """By descriptor."""
        self._look_due = 0.0
        self._keys_due = 0.0
        self._unsent = 0
        self._log_cut = RateLimitedLog(LOG)

    def watch_port(self, port: int, host: str) -> None:
        """Watch the connections accepted at this port.  ``host`` is empty for all interfaces."""
        self._connections.listen_on_port(port, host)

    def watch_path(self, path: pathlib.Path) -> None:
        """Watch the connections accepted at this socket file."""
        self._connections.listen_on_path(str(path))

    def wait_ms(self, now: float) -> int:
        return max(0, 1 + int(1000 * (self._look_due - now)))

    # -- askers

    def account_of(self, descriptor: int) -> Account | None:
        """The account of the connection with this descriptor; None when the connection is gone."""
        account = self._accounts.get(descriptor)
        if account is None or not account.connection.is_same:
            # Without a scan: thousands of askers come at once when a publisher restarts.
            self._accounts.pop(descriptor, None)
            account = None
            if (found := self._connections.find(descriptor)) is not None:
                account = self._accounts[descriptor] = Account(found, time.monotonic())
        return account

    def has_room(self, account: Account | None, size: int) -> bool:
        """Whether an answer of this size may be given to libzmq now."""
        if account is None or not account.connection.is_measured:
            return True  # libzmq limits the number of answers then
        before = account.unsent
        if before + size > self._peer_bytes_max // 4:  # measured only near the limit: the estimate is never too low
            account.measure(time.monotonic())
        now_unsent = account.unsent
        self._unsent += now_unsent - before
        if not now_unsent:
            return True
        return now_unsent + size <= self._peer_bytes_max // 2 and self._unsent + size <= self._peers_bytes_max // 2

    def note_answer(self, account: Account | None, size: int) -> None:
        if account is not None:
            account.add_queued(size, time.monotonic())
            self._unsent += size if account.connection.is_measured else 0

    # -- looking

    def look(self) -> None:
        """Cut the peers that must not stay.  Does nothing before the next check is due."""
        now = time.monotonic()
        if now < self._look_due:
            return
        self._scan(now)
        if self._allowed is not None and now >= self._keys_due:
            self._keys_due = now + KEYS_INTERVAL_S
            self._allowed.look(self._tally)
            if self._allowed.is_one_revoked:
                self._allowed.is_one_revoked = False
                self._cut_all_for_their_keys()
        self._cut_for_bytes(now)
        is_scarce = self._cut_for_descriptors()
        pause_s = _SCARCE_INTERVAL_S if is_scarce else LOOK_INTERVAL_S
        self._look_due = now + pause_s + _LOOK_COST_S * self._connections.descriptors

    def _scan(self, now: float) -> None:
        found = self._connections.scan()
        known = {account.connection: account for account in self._accounts.values()}
        self._accounts = {one.descriptor: known.get(one) or Account(one, now) for one in found}

    def _cut_all_for_their_keys(self) -> None:
        """Cut all connections after a key was removed: it is not known which connection uses which key.  Peers with an
        allowed key connect again."""
        cut = sum(account.connection.cut() for account in self._accounts.values())
        self._tally.add("connections_cut", cut)
        LOG.warning("%s: a CURVE key was removed; all %d connections were cut and must log in again", self.name, cut)

    def _cut_for_bytes(self, now: float) -> None:
        held: list[tuple[int, Account]] = []
        self._unsent = 0
        for account in self._accounts.values():
            account.measure(now)
            self._unsent += account.unsent
            held.append((account.held(now), account))
        total = sum(size for size, _ in held)
        for size, account in sorted(held, key=lambda one: one[0], reverse=True):
            if size > self._peer_bytes_max:
                self._cut(account, f"it holds {size} bytes, more than a sixteenth of [zmq] peers_bytes_max")
            elif total > self._peers_bytes_max:
                self._cut(account, f"all hold {total} bytes, more than [zmq] peers_bytes_max, and it {size} of them")
            elif account.is_stalled(now, self._patience_s):
                self._cut(account, f"it has taken nothing of its answers for {self._patience_s} s")
            else:
                continue
            total -= size

    def _cut_for_descriptors(self) -> bool:
        missing = descriptors.RESERVED - descriptors.room(self._connections.descriptors)
        if missing > 0:
            youngest = sorted(self._accounts.values(), key=lambda one: one.since, reverse=True)
            for account in youngest[: max(0, missing - self._connections.closing)]:
                self._cut(account, "this process runs out of descriptors: raise ulimit -n")
        return missing > 0

    def _cut(self, account: Account, why: str) -> None:
        if account.connection.cut():
            self._tally.add("connections_cut")
            self._log_cut("%s: the connection of %s was cut: %s", self.name, account.connection.peer, why)
