"""One subscriber's link to one publisher of the ZeroMQ driver.  Only the receiving thread uses it; it calls no user
code.

A link is a SUB socket, a monitor that reports events of its connection, and a DEALER socket for queries, which is made
when the publisher has said where it answers them.

* ``open`` connects and then subscribes, filter by filter, the nonce of the barrier last (see `wire`).  The
  subscriptions wait in the socket until the publisher is there, and reach it in this order.
* The echo of the nonce brings the link up: that is `Connected`, or `Subscribed` for filters that were added later.
  Only one nonce waits for its echo at a time; filters that are added meanwhile are covered by the next one.
* When the monitor reports that the connection is lost, the link is ``lost``.  Its sockets are closed, and it is opened
  again with new ones.  ZeroMQ's own reconnecting is not used, for two reasons.  It sends the subscriptions again in
  another order, so that a nonce could overtake a filter, and the echo would prove nothing.  And it never recovers from
  a refused or garbled handshake.  While a publisher is only absent, ZeroMQ waits for it.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable

import zmq
from oslo_config import cfg

from heliograph_drivers.pubsub.zmq import endpoints
from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.access.descriptors import LINK_DESCRIPTORS, check_room
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from heliograph_drivers.pubsub.zmq.options import BARRIER_TIMEOUT_S, RECEIVE_HWM
from heliograph_drivers.pubsub.zmq.wire import NONCE_BYTES, SYNC, Echo, unpack_echo
from pubsub_api import config
from pubsub_api.driver import Connected, Disconnected, LinkReport, Subscribed
from pubsub_api.driver_kit import Backoff, Tally
from pubsub_api.errors import LimitReached

LOG = logging.getLogger(__name__)

ContextOf = Callable[[str], "zmq.Context[Socket]"]
"""Returns the context for a host name, which is empty for a numeric address.  May raise LimitReached."""

_EVENT = struct.Struct("=HI")

# Event of the monitor -> reason in the report.  Refusals are reported even for a link that was never up, because
# waiting does not help.
_REFUSALS = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "the publisher refused the CURVE key of this subscriber",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "the peer does not speak ZeroMQ with the security configured here",
}
_LOSSES = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "the peer ended the handshake; perhaps it has other keys",
    int(zmq.EVENT_DISCONNECTED): "the connection was lost",
    **_REFUSALS,
}
_BROKEN_HANDSHAKES_MAX = 3
"""A publisher that restarts may break one or two handshakes; one that breaks more in a row refuses the subscriber."""
_HANDSHAKE_SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_WATCHED = sum(_LOSSES) | _HANDSHAKE_SUCCEEDED


class ZmqLink:
    """See the module's description.  ``lost`` is the reason why the link must be dropped, or None.  ``deadline`` is
    when a closed link must be opened again, or when `on_deadline` of an open link must be called; None means never."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve, address: str, tally: Tally) -> None:
        self.address = address
        self.sub: Socket | None = None
        self.monitor: Socket | None = None
        self.dealer: Socket | None = None
        self.incoming: list[tuple[Socket, int]] = []
        """The argument of ``zmq_poll`` that asks whether ``sub`` has something to read."""
        self.is_up = False
        self.lost: str | None = None
        self.deadline: float | None = None
        self._context: zmq.Context[Socket] | None = None
        self._conf = conf
        self._curve = curve
        self._tally = tally
        self._backoff = Backoff(config.retry_interval(conf), conf[config.GROUP].retry_interval_max)
        self._is_loss_told = False
        self._is_refused = False
        self._is_handshaken = False
        self._broken_handshakes = 0
        self._nonce: bytes | None = None
        self._covered: list[str] = []
        self._uncovered: list[str] = []
        self._publisher: Echo | None = None
        self._unanswered = 0

    @property
    def sockets(self) -> list[Socket]:
        """The open sockets, to be polled."""
        return [sock for sock in (self.sub, self.monitor, self.dealer) if sock is not None]

    # -- connection

    def open(self, prefixes: list[bytes], now: float, context_of: ContextOf, *, uses_ipv6: bool) -> None:
        """Connect and subscribe.  Does not block.  Sets ``lost`` when it fails."""
        self.deadline = None
        try:
            self._context = context_of(endpoints.host_name(self.address))
            self._open(prefixes, uses_ipv6=uses_ipv6)
        except LimitReached as error:
            self.lost = str(error)
            self._is_refused = True  # reported like a refusal, because waiting alone does not help
        except zmq.ZMQError as error:
            self.lost = str(error)
        else:
            self._start_barrier(now)

    def _open(self, prefixes: list[bytes], *, uses_ipv6: bool) -> None:
        assert self._context is not None
        check_room(LINK_DESCRIPTORS, f"the link to {self.address}")
        sub = self.sub = self._new_socket(zmq.SUB)
        # Unlimited, because ZeroMQ silently drops subscriptions above the limit.  The filters limit their number.
        sub.set(zmq.SNDHWM, 0)
        sub.set(zmq.RCVHWM, RECEIVE_HWM)
        self.incoming = [(sub, int(zmq.POLLIN))]
        monitored = f"inproc://{os.urandom(NONCE_BYTES).hex()}"
        sub.monitor(monitored, _WATCHED)
        self.monitor = self._context.socket(zmq.PAIR)
        self.monitor.connect(monitored)
        self._connect(sub, self.address, uses_ipv6)
        for prefix in prefixes:
            sub.subscribe(prefix)

    def close(self) -> None:
        """Close every socket.  Frames that were not read yet are lost."""
        if self.sub is not None:
            self.sub.disable_monitor()
        for sock in self.sockets:
            sock.close(0)
        self.sub = self.monitor = self.dealer = None
        self.incoming.clear()
        self.is_up = self._is_handshaken = self._is_refused = False
        self.lost = self._nonce = self._publisher = self.deadline = None
        self._covered.clear()
        self._uncovered.clear()

    def drop(self, now: float) -> list[LinkReport]:
        """Close a link that is ``lost`` and set the deadline for opening it again.  Returns the reports."""
        assert self.lost is not None
        self._tally.add("link_failures")
        reports: list[LinkReport] = []
        if (self.is_up or self._is_refused) and not self._is_loss_told:
            self._is_loss_told = True
            reports.append(Disconnected(self.address, self.lost))
        else:
            LOG.debug("%s: %s", self.address, self.lost)
        self.close()
        self.deadline = now + self._backoff.next_s()
        return reports

    def read_monitor(self, now: float) -> None:
        """Handle the events of the connection since the last call."""
        while self.monitor is not None and self.lost is None:
            try:
                parts = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event, _value = _EVENT.unpack(parts[0])
            if event == _HANDSHAKE_SUCCEEDED:
                self._is_handshaken = True
                self._broken_handshakes = 0
                self._set_barrier_deadline(now)
            elif event in _LOSSES:
                self._broken_handshakes += not self._is_handshaken
                self._is_refused = event in _REFUSALS or self._broken_handshakes >= _BROKEN_HANDSHAKES_MAX
                self.lost = _LOSSES[event]

    def _new_socket(self, kind: int) -> Socket:
        assert self._context is not None
        sock = self._context.socket(kind)
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.TCP_KEEPALIVE, 1)
        times = self._conf[config.GROUP]
        endpoints.set_heartbeats(sock, times.link_timeout)
        sock.set(zmq.CONNECT_TIMEOUT, int(times.connect_timeout * 1000))
        sock.set(zmq.HANDSHAKE_IVL, int(times.connect_timeout * 1000))
        sock.set(zmq.RECONNECT_IVL, max(1, int(config.retry_interval(self._conf) * 1000)))
        sock.set(zmq.RECONNECT_IVL_MAX, int(times.retry_interval_max * 1000))
        self._curve.secure_client(sock)
        return sock

    @staticmethod
    def _connect(sock: Socket, address: str, uses_ipv6: bool) -> None:
        sock.set(zmq.IPV6, uses_ipv6)
        sock.connect(address)

    # -- subscriptions and the barrier

    def subscribe(self, topic_filter: str, prefixes: list[bytes], now: float) -> None:
        """Add a filter, which needs these prefixes in addition to the present ones."""
        if self.sub is None:
            return
        for prefix in prefixes:
            self.sub.subscribe(prefix)
        self._uncovered.append(topic_filter)
        if self._nonce is None:
            self._start_barrier(now)

    def unsubscribe(self, topic_filter: str, prefixes: list[bytes]) -> None:
        """Remove a filter, and the prefixes that only it needed."""
        if self.sub is None:
            return
        for prefix in prefixes:
            self.sub.unsubscribe(prefix)
        for waiting in (self._covered, self._uncovered):
            if topic_filter in waiting:
                waiting.remove(topic_filter)

    def on_echo(self, topic: bytes, payload: bytes, now: float) -> list[LinkReport]:
        """Handle an echo; returns the reports.  The echo of another nonce is ignored: a subscriber of all topics gets
        the echoes for others, too."""
        if self.sub is None or topic != self._nonce:
            return []
        # If ZeroMQ has lost the connection and made a new one by itself, the monitor reports it now: the order in which
        # the nonce arrived proves nothing then.
        self.read_monitor(now)
        publisher = unpack_echo(payload)
        if self.lost is not None or publisher is None:
            return []
        self.sub.unsubscribe(self._nonce)
        self._nonce = self.deadline = None
        self._unanswered = 0
        self._set_publisher(publisher)
        covered, self._covered = self._covered, []
        is_complete = not self._uncovered
        if not is_complete:
            self._start_barrier(now)
        if self.is_up:
            return [Subscribed(self.address, topic_filter) for topic_filter in covered]
        if not is_complete:
            return []  # `Connected` waits until every filter is in effect
        self.is_up = True
        self._is_loss_told = False
        self._backoff.reset()
        return [Connected(self.address)]

    def on_deadline(self, now: float) -> list[LinkReport]:
        """Try another nonce, because there was no echo: it may have been lost in a full queue.  Returns the reports.

        A link that was never up is then reported as down with the reason: a plain ZeroMQ publisher does not answer, and
        a program that waits for the link should learn why.  Messages of such a publisher are handed over anyway.
        """
        self._unanswered += 1
        self._tally.add("barriers_repeated")
        reports: list[LinkReport] = []
        if self._unanswered == 1:
            LOG.warning(
                "%s has not confirmed the subscriptions within %s s. It is overloaded, or no publisher of Heliograph; "
                "asking again", self.address, BARRIER_TIMEOUT_S,
            )  # fmt: skip
            if not self.is_up and not self._is_loss_told:
                self._is_loss_told = True
                reason = "connected, but subscriptions are not confirmed: overloaded, or no publisher of Heliograph"
                reports.append(Disconnected(self.address, reason))
        self._start_barrier(now)
        return reports

    def _start_barrier(self, now: float) -> None:
        assert self.sub is not None
        if self._nonce is not None:
            self.sub.unsubscribe(self._nonce)
        self._nonce = SYNC + os.urandom(NONCE_BYTES)
        self.sub.subscribe(self._nonce)
        self._covered += self._uncovered
        self._uncovered.clear()
        self._set_barrier_deadline(now)

    def _set_barrier_deadline(self, now: float) -> None:
        """Set the deadline of the echo; there is none while the publisher is absent."""
        if self._is_handshaken and self._nonce is not None:
            self.deadline = now + BARRIER_TIMEOUT_S

    # -- queries

    def ask(self, query: bytes) -> None:
        """Send a query, if the publisher answers queries.  Does not block."""
        if self.dealer is not None:
            try:
                self.dealer.send(query, zmq.NOBLOCK)
            except zmq.Again:
                self._tally.add("queries_dropped")
                LOG.debug("%s: a query was dropped, too many are waiting", self.address)

    def look_for_responder(self, now: float) -> None:
        """Ask again whether the publisher answers queries, which its next echo says."""
        if self.is_up and self.dealer is None and self._nonce is None:
            self._start_barrier(now)

    def _set_publisher(self, publisher: Echo) -> None:
        if publisher == self._publisher:
            return
        self._publisher = publisher
        if self.dealer is not None:
            self.dealer.close(0)
            self.dealer = None
        if publisher.serves and self.sub is not None:
            self.dealer = self._new_socket(zmq.DEALER)
            address = endpoints.query_address(self.address, publisher.query_port)
            self._connect(self.dealer, address, bool(self.sub.get(zmq.IPV6)))
