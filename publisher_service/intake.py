"""The thread that takes batches from workers: one loop over all connections, nothing in it blocks for long.

In every turn it reads a bounded amount from each worker that has something to say, publishes what came, hands it to the
transport, and only then acknowledges.  So what is acknowledged is published, and a service that cannot keep up leaves
the rest in the workers' bounded windows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import select
import socket
import threading
import time

from publisher_service import config
from publisher_service.core.service_side import ConnectionState, ServiceCore, TakenBatch, WorkerConnection
from publisher_service.errors import WorkerProtocolError
from publisher_service.sequencer import Sequencer
from pubsub_api.runtime.sockets import socket_file
from pubsub_api.runtime.sockets.waking import Waker

LOG = logging.getLogger(__name__)

_TURN_S = 1.0
"""The loop turns at least this often, so that time-outs are noticed and the watchdog sees it alive."""
_QUIET_S = 0.05
_OUTGOING_BYTES_MAX = 64 * 1024
"""A worker that does not read its acknowledgements is cut off when this many bytes of them wait."""


@dataclasses.dataclass
class ConnectionCounters:
    connections: int = 0
    denied: int = 0
    """Processes of other users, and connections that could not be accepted."""
    bad_connections: int = 0
    """Ended because of one bad message."""
    greeting_timeouts: int = 0


class _Peer:
    """A connection and its socket."""

    __slots__ = ("connection", "has_more", "mask", "since", "sock")

    def __init__(self, sock: socket.socket, connection: WorkerConnection, now: float) -> None:
        self.sock = sock
        self.connection = connection
        self.since = now
        self.has_more = False
        """The last read did not empty the socket."""
        self.mask = select.EPOLLIN


class Intake:
    """Made by the service.  `start` begins the thread; `stop` drains, ends it and closes every connection."""

    def __init__(self, listener: socket.socket, core: ServiceCore, sequencer: Sequencer) -> None:
        self._listener = listener
        self._core = core
        self._sequencer = sequencer
        self.counters = ConnectionCounters()
        self.turned_at = time.monotonic()
        """When the loop turned last: how the watchdog knows that it lives."""
        self._buffer = memoryview(bytearray(config.READ_BYTES_MAX))
        """What was read last, from any worker: fresh memory for every read would cost more than the read."""
        self._peers: dict[int, _Peer] = {}
        self._is_accepting = True
        self._accept_at = 0.0
        self._look_at = 0.0
        """When all connections are looked at next, at the latest."""
        self._seen_endings = 0
        self._stop_by: float | None = None
        self._is_stopped = False
        self._waker = Waker()
        self._epoll = select.epoll()
        self._epoll.register(self._waker, select.EPOLLIN)
        self._epoll.register(listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="heliograph-intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, *, drain_timeout_s: float) -> None:
        """Accept no new workers, take what workers have sent already, acknowledge it, and end.  Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._stop_by = time.monotonic() + drain_timeout_s
        if self._thread.is_alive():
            self._waker.wake()
            self._thread.join()
        # Here and not in the thread, which may have noticed by itself that it shall end before it was woken.
        self._epoll.close()
        self._waker.close()

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._turn():
                pass
        except Exception:
            LOG.critical("The intake of the publisher service has failed.", exc_info=True)
            raise
        finally:
            for peer in list(self._peers.values()):
                self._close(peer)

    def _turn(self) -> bool:
        """Wait for something to happen and handle it.  True when the loop should end."""
        is_stopping = self._stop_by is not None
        ready = self._epoll.poll(_QUIET_S if is_stopping else _TURN_S)
        self.turned_at = now = time.monotonic()
        read: list[_Peer] = []
        for fd, mask in ready:
            peer = self._peers.get(fd)
            if peer is None:
                self._handle_own(fd)
                continue
            if mask & ~select.EPOLLIN:
                self._write(peer)
            if mask & ~select.EPOLLOUT and peer.sock.fileno() >= 0 and self._read(peer):
                read.append(peer)
        if read:
            refused, reason = self._sequencer.flush()
            for peer in read:
                worker = peer.connection.worker
                if refused and worker is not None:  # whose they are is not known: each has to take it for its own
                    peer.connection.refuse(refused, reason)
                    self._sequencer.refuse(worker.guid, refused)
                peer.connection.acknowledge()
                self._write(peer)
        self._check_times(now)
        if not is_stopping:
            return False
        self._stop_accepting()
        assert self._stop_by is not None
        return not any(peer.has_more for peer in read) or now >= self._stop_by

    def _handle_own(self, fd: int) -> None:
        """Something happened that is no worker's; nothing, when that worker's connection was closed in this turn."""
        if fd == self._waker.fd:
            self._waker.clear()
        elif fd == self._listener.fileno():
            self._accept()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            LOG.warning("A worker's connection cannot be accepted: %s. Trying again in a second.", error)
            self.counters.denied += 1
            self._accept_at = time.monotonic() + _TURN_S
            self._stop_accepting()
            return
        sock.setblocking(False)
        peer = socket_file.credentials(sock)
        if not socket_file.is_trusted(peer):
            LOG.warning("Process %d of user %d may not publish through this service.", peer.pid, peer.uid)
            self.counters.denied += 1
            sock.close()
            return
        if len(self._peers) >= 2 * self._core.settings.workers_max:
            self.counters.denied += 1
            sock.close()
            return
        self.counters.connections += 1
        joined = self._peers[sock.fileno()] = _Peer(sock, self._core.connect(), time.monotonic())
        self._epoll.register(sock, joined.mask)

    def _read(self, peer: _Peer) -> bool:
        try:
            size = peer.sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            LOG.debug("A worker's connection failed: %s", error)
            size = 0
        if not size:
            self._close(peer)
            return False
        peer.has_more = size == len(self._buffer)
        worker = peer.connection.worker
        try:
            data = self._buffer[:size]
            lone = peer.connection.take_lone(data)
            if lone is not None:
                self._take(peer, lone)
                return True
            for taken in peer.connection.feed(data):
                self._take(peer, taken)
        except WorkerProtocolError as error:
            self.counters.bad_connections += 1
            LOG.warning("Worker %s is cut off: %s", worker.name if worker else "(unknown)", error)
        if (
            peer.connection.state is ConnectionState.ENDED
            and worker is not None
            and worker.guid not in self._core.workers
        ):
            self._sequencer.forget(worker.guid)
        return True

    def _take(self, peer: _Peer, taken: TakenBatch) -> None:
        refused, reason = self._sequencer.take(taken.worker.guid, taken.number, taken.groups, taken.payload)
        if refused:
            peer.connection.refuse(refused, reason)

    def _write(self, peer: _Peer) -> None:
        connection = peer.connection
        if peer.sock.fileno() < 0:
            return
        try:
            if connection.outgoing:
                connection.outgoing = connection.outgoing[peer.sock.send(connection.outgoing) :]
        except BlockingIOError:
            pass
        except OSError:
            connection.outgoing = b""
            connection.end()
        if not connection.outgoing and connection.state is ConnectionState.OPEN and peer.mask == select.EPOLLIN:
            return  # as most often
        is_over = connection.state is ConnectionState.ENDED and not connection.outgoing
        if is_over or len(connection.outgoing) > _OUTGOING_BYTES_MAX:
            self._close(peer)
            return
        mask = select.EPOLLIN | (select.EPOLLOUT if connection.outgoing else 0)
        if mask != peer.mask:
            peer.mask = mask
            self._epoll.modify(peer.sock, mask)

    def _close(self, peer: _Peer) -> None:
        peer.connection.end()
        if peer.sock.fileno() >= 0:
            del self._peers[peer.sock.fileno()]
            self._epoll.unregister(peer.sock)
            peer.sock.close()

    def _check_times(self, now: float) -> None:
        if self._core.endings != self._seen_endings or now >= self._look_at:
            # Seldom, since this looks at every connection.
            self._seen_endings = self._core.endings
            self._look_at = now + _TURN_S
            self._look_at_all(now)
        if not self._is_accepting and self._stop_by is None and now >= self._accept_at:
            self._is_accepting = True
            self._epoll.register(self._listener, select.EPOLLIN)

    def _look_at_all(self, now: float) -> None:
        """Close connections that have ended, and those that never greeted."""
        for peer in [peer for peer in self._peers.values() if peer.connection.state is not ConnectionState.OPEN]:
            if peer.connection.state is ConnectionState.ENDED:
                self._write(peer)
            elif now - peer.since > config.HELLO_TIMEOUT_S:
                self.counters.greeting_timeouts += 1
                self._close(peer)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            with contextlib.suppress(OSError, ValueError):  # it is closed already
                self._epoll.unregister(self._listener)
