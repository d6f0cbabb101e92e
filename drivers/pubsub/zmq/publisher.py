"""The sending end of the ZeroMQ driver: an XPUB socket for frames, a ROUTER socket for queries.

``send`` uses the XPUB socket in the caller's thread: handing the frame to a thread of the driver would cost more than
the transport does.  The service thread uses the same socket for what subscribers send, which is subscriptions; a lock
makes them take turns.  It alone uses the other sockets.

A subscriber that has fallen ``send_hwm`` frames behind is waited for, since repairing what would be dropped costs far
more than a pause; ``send_wait`` at most, though.  Then ZeroMQ drops frames for it, and for it alone, and none is
waited for during `SEND_WAIT_INTERVAL_S`.  The layer above numbers frames, so the subscriber notices and asks for them.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Sequence

import zmq
from oslo_config import cfg

from heliograph_drivers.pubsub.zmq import endpoints
from heliograph_drivers.pubsub.zmq.access.curve import ZAP_ADDRESS, Curve, answer_zap
from heliograph_drivers.pubsub.zmq.access.descriptors import CONTEXT, SOCKET, check_room
from heliograph_drivers.pubsub.zmq.access.peer_limits import PeerLimits
from heliograph_drivers.pubsub.zmq.answers import RETRY_MS, Answers
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from heliograph_drivers.pubsub.zmq.options import (
    GROUP,
    LINGER_S,
    RECEIVE_HWM,
    SEND_WAIT_INTERVAL_S,
    WILDCARD_HOSTS,
    peer_bytes_max,
)
from heliograph_drivers.pubsub.zmq.wire import NONCE_BYTES, NUL, SYNC, Echo, pack_echo
from pubsub_api import config
from pubsub_api.driver import PublisherReport
from pubsub_api.driver_kit import DriverPublisher, GuardedHandler, Tally, Waker, join_thread, start_thread
from pubsub_api.errors import Closed, TransportUnavailable, UsageError

LOG = logging.getLogger(__name__)

_SNDMORE = zmq.SNDMORE
_send_part = zmq.backend.Socket.send
"""What ``Socket.send`` calls once it has seen that nothing unusual is wanted: that takes longer than to send."""
_SUBSCRIBE_SYNC = b"\x01" + SYNC
_PER_TURN = 64
"""Subscriptions handled before other sockets get a turn."""
_SUBSCRIPTION_BYTES_MAX = 1024
"""More than any topic of ours needs; a peer that sends more is disconnected."""
_BACKLOG = 4096
"""Connections that wait to be accepted."""
_REPLIES_MIN = 4
"""Fewer in the queue of an asker would make it wait for each of them."""


class ZmqPublisher(DriverPublisher):
    """See `PublisherApi`.  ``path`` is the socket file under the ipc transport, None under tcp."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve, path: pathlib.Path | None) -> None:
        tally = Tally(
            "slow_subscribers", "echoes_dropped", "replies_dropped", "not_queries", "connections_cut", "keys_refused",
            "keys_unreadable",
        )  # fmt: skip
        self._conf = conf
        self._curve = curve
        self._path = path
        super().__init__(self._address_at(conf[config.GROUP].publisher_port), tally)
        self._pid = os.getpid()
        self._context: zmq.Context[Socket] | None = None
        self._xpub: Socket | None = None
        self._router: Socket | None = None
        self._zap: Socket | None = None
        self._answers: Answers | None = None
        self._allowed = curve.allowed_keys()
        self._door = PeerLimits(conf, self._allowed, tally)
        self._files: list[endpoints.SocketFile] = []
        self._incoming: list[tuple[Socket, int]] = []
        self._is_in_message = False
        """What was read last from subscribers has more parts."""
        self._descriptor = -1
        self._drops_until = 0.0
        """While frames are dropped for slow subscribers, until when; else 0."""
        self._echo = Echo(publisher=os.urandom(16), serves=False, query_port=0)
        self._waker: Waker | None = None
        self._thread: threading.Thread | None = None

    def _open(self, report: PublisherReport) -> None:  # noqa: ARG002 - a bound socket has no link to report
        check_room(CONTEXT + 2 * SOCKET, "a publisher")
        self._context = zmq.Context()
        try:
            self._open_zap()
            self._xpub = self._open_xpub()
            self._incoming = [(self._xpub, int(zmq.POLLIN))]
            self._descriptor = self._xpub.fileno()
            self._waker = Waker()
            thread = threading.Thread(target=self._run, name=f"zmq-publisher-{self.address}", daemon=True)
            start_thread(thread)
            self._thread = thread
        except BaseException:
            self._release()
            raise

    def _address_at(self, port: int) -> str:
        if self._path is not None:
            return endpoints.ipc_address(self._path)
        options = self._conf[config.GROUP]
        host = options.publisher_bind_address
        return endpoints.tcp_address(options.local_ip if host in WILDCARD_HOSTS else host, port)

    def send(self, topic: str, frame: bytes) -> None:
        self._check_usable()
        with self._lock:
            xpub = self._xpub if self._xpub is not None else self._opened()
            try:
                if self._drops_until:
                    self._wait_again(xpub)
                self._send(xpub, topic, frame)
                if zmq.zmq_poll(self._incoming, 0):  # see `_look_for_subscriptions`
                    self._read_subscriptions(xpub)
            except zmq.ZMQError as error:
                raise TransportUnavailable(f"{self.address}: {error}") from error

    def send_many(self, frames: Sequence[tuple[str, bytes]]) -> None:
        self._check_usable()
        with self._lock:
            xpub = self._opened()
            try:
                if self._drops_until:
                    self._wait_again(xpub)
                for topic, frame in frames:
                    self._send(xpub, topic, frame)
                self._look_for_subscriptions(xpub)
            except zmq.ZMQError as error:
                raise TransportUnavailable(f"{self.address}: {error}") from error

    def _opened(self) -> Socket:
        if self._xpub is None:
            raise Closed(f"{self.address} is closed") if self._is_closed else UsageError("initialize comes first")
        return self._xpub

    def _send(self, xpub: Socket, topic: str, frame: bytes) -> None:
        name = topic.encode() + NUL
        try:
            _send_part(xpub, name, _SNDMORE)
        except zmq.Again:
            self._stop_waiting(xpub)
            _send_part(xpub, name, _SNDMORE)
        _send_part(xpub, frame)

    def _look_for_subscriptions(self, xpub: Socket) -> None:
        """Read what subscribers have sent, if anything.

        Sending lets ZeroMQ look at its mailbox, and a subscription found there no longer makes the socket's file
        descriptor readable: the service thread would sleep on.  So the sender must look.  This is the cheapest
        question pyzmq has (1 us; reading the EVENTS option 1.5, a recv that fails 4), and it is asked once per call,
        not per frame.
        """
        if zmq.zmq_poll(self._incoming, 0):
            self._read_subscriptions(xpub)

    def _stop_waiting(self, xpub: Socket) -> None:
        """A subscriber's queue stayed full."""
        LOG.warning("%s: a subscriber reads too slowly, frames are dropped for it", self.address)
        self._tally.add("slow_subscribers")
        self._drops_until = time.monotonic() + SEND_WAIT_INTERVAL_S
        xpub.set(zmq.XPUB_NODROP, 0)

    def _wait_again(self, xpub: Socket) -> None:
        if time.monotonic() >= self._drops_until:
            self._drops_until = 0.0
            xpub.set(zmq.XPUB_NODROP, 1)

    def _serve(self, handler: GuardedHandler) -> None:
        check_room(SOCKET, "answering queries")
        with self._lock:
            if self._context is None or self._waker is None:
                raise Closed(f"the publisher of {self.address} is closed")
            router = self._open_router()
            port = 0 if self._path is not None else endpoints.bound_to(router)[1]
            self._router = router
            self._answers = Answers(router, handler, self._door, self._tally, self.address)
            self._echo = self._echo._replace(serves=True, query_port=port)
        self._waker.wake()

    def _close(self) -> None:
        if self._thread is not None and self._waker is not None:
            self._waker.wake()
            join_thread(self._thread)

    # -- opening and closing

    def _open_zap(self) -> None:
        if self._allowed is None or self._context is None:
            return
        self._zap = self._context.socket(zmq.REP)
        self._zap.set(zmq.LINGER, 0)
        self._zap.bind(ZAP_ADDRESS)

    def _open_xpub(self) -> Socket:
        # Not made verbose: only the first subscription to a topic is told, as every nonce is.  A thousand subscribers
        # that return after a restart cost a thousand nonces, not a thousand times their filters.
        xpub = self._new_socket(zmq.XPUB)
        xpub.set(zmq.MAXMSGSIZE, _SUBSCRIPTION_BYTES_MAX)
        xpub.set(zmq.XPUB_NODROP, 1)
        xpub.set(zmq.SNDTIMEO, int(self._conf[config.GROUP].send_wait * 1000))
        try:
            self._bind(xpub)
        except BaseException:
            xpub.close(0)
            raise
        if self._path is None:
            self._address = self._address_at(endpoints.bound_to(xpub)[1])
        self._door.name = self.address
        return xpub

    def _open_router(self) -> Socket:
        router = self._new_socket(zmq.ROUTER)
        # Questions are small; no peer may make us buffer more than a frame.
        router.set(zmq.MAXMSGSIZE, self._conf[config.GROUP].frame_bytes_max)
        # A full queue, and an asker that is gone, are told at once instead of being passed over.
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.SNDTIMEO, 0)
        if self._path is not None:
            # The system does not tell how much of a socket file's other end has read, so replies are counted.
            replies = peer_bytes_max(self._conf[GROUP]) // config.reply_bytes_max(self._conf)
            router.set(zmq.SNDHWM, max(_REPLIES_MIN, replies))
        try:
            self._bind(router, query=True)
        except BaseException:
            router.close(0)
            raise
        return router

    def _new_socket(self, kind: int) -> Socket:
        assert self._context is not None
        sock = self._context.socket(kind)
        sock.set(zmq.LINGER, int(LINGER_S * 1000))
        sock.set(zmq.SNDHWM, self._conf[GROUP].send_hwm)
        sock.set(zmq.RCVHWM, RECEIVE_HWM)
        # When a publisher starts again all subscribers come at once, and one that finds no place tries again after
        # seconds.  The system has a limit of its own.
        sock.set(zmq.BACKLOG, _BACKLOG)
        sock.set(zmq.TCP_KEEPALIVE, 1)
        endpoints.set_heartbeats(sock, self._conf[config.GROUP].link_timeout)
        self._curve.secure_server(sock)
        return sock

    def _bind(self, sock: Socket, *, query: bool = False) -> None:
        if self._path is not None:
            path = endpoints.query_path(self._path) if query else self._path
            self._files.append(endpoints.bind_ipc(sock, path))
            self._door.watch_path(path)
            return
        options = self._conf[config.GROUP]
        port = self._conf[GROUP].query_port if query else options.publisher_port
        endpoints.bind_tcp(sock, options.publisher_bind_address, port)
        host, port = endpoints.bound_to(sock)
        self._door.watch_port(port, "" if host in WILDCARD_HOSTS else host)

    def _release(self) -> None:
        """Close what is open.  Ending the context waits, up to `LINGER_S`, for frames that have not left."""
        for sock in (self._zap, self._router, self._xpub):
            if sock is not None:
                sock.close()
        self._zap = self._router = self._xpub = None
        if self._context is not None:
            self._context.term()
            self._context = None
        for file in self._files:
            file.remove()
        self._files.clear()
        if self._waker is not None:
            self._waker.close()

    def _check_usable(self) -> None:
        if self._is_closed or os.getpid() != self._pid:  # asked here, which saves a call for every frame
            super()._check_usable()

    # -- the service thread

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._handle_events()
        except zmq.ZMQError:
            LOG.exception("%s: the publisher cannot go on and is closed", self.address)
        finally:
            self._is_closed = True
            with self._lock:
                self._release()

    def _handle_events(self) -> None:
        """Wait and handle until there is another set of sockets to wait for, or the end."""
        xpub, waker, zap, router, answers = self._xpub, self._waker, self._zap, self._router, self._answers
        assert xpub is not None
        assert waker is not None
        poller = zmq.Poller()
        # The XPUB socket itself may be in use by a sender, its descriptor may be polled by any thread.
        poller.register(self._descriptor, zmq.POLLIN)
        poller.register(waker.fd, zmq.POLLIN)
        for sock in (zap, router):
            if sock is not None:
                poller.register(sock, zmq.POLLIN)
        while not self._is_closed and router is self._router:
            wait_ms = RETRY_MS if answers is not None and answers.is_waiting else self._door.wait_ms(time.monotonic())
            ready = {source for source, _ in poller.poll(wait_ms)}
            if waker.fd in ready:
                waker.clear()
            if zap in ready and zap is not None and self._allowed is not None:
                answer_zap(zap, self._allowed, self._tally)
            if answers is not None:
                answers.go_on()
                if router in ready:
                    answers.read()
            self._door.look()
            with self._lock:
                self._read_subscriptions(xpub)

    def _read_subscriptions(self, xpub: Socket) -> None:
        """Read what subscribers have sent, and answer nonces.  The caller holds the lock."""
        for _ in range(_PER_TURN):
            if not zmq.zmq_poll(self._incoming, 0):
                return
            message = xpub.recv()
            # One part at a time: a message may have any number of them, and senders wait for the lock.
            is_tail, self._is_in_message = self._is_in_message, bool(xpub.get(zmq.RCVMORE))
            if is_tail or self._is_in_message:
                continue  # subscriptions have one part
            if message.startswith(_SUBSCRIBE_SYNC) and len(message) == len(_SUBSCRIBE_SYNC) + NONCE_BYTES:
                self._echo_nonce(xpub, message[1:])
        if self._waker is not None:
            self._waker.wake()

    def _echo_nonce(self, xpub: Socket, nonce: bytes) -> None:
        try:
            xpub.send(nonce, _SNDMORE | zmq.NOBLOCK)
        except zmq.Again:
            self._tally.add("echoes_dropped")
            LOG.debug("%s: a subscriber that is behind gets its echo when it asks again", self.address)
        else:
            xpub.send(pack_echo(self._echo))
