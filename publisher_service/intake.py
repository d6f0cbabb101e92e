"""The thread that takes batches from workers: one loop over all connections, nothing in it blocks for long.

In every turn it reads a bounded amount from each worker that has something to say, publishes what came, hands it to the
transport, and only then acknowledges.  So what is acknowledged is published, and a service that cannot keep up leaves
the rest in the workers' bounded windows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from publisher_service.core.service_side import ConnectionState, ServiceCore, WorkerConnection
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
class IntakeLimits:
    """What may change while it runs."""

    read_bytes_max: int
    hello_timeout_s: float


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
        self.mask = selectors.EVENT_READ


class Intake:
    """Made by the service.  `start` begins the thread; `stop` drains, ends it and closes every connection."""

    def __init__(self, listener: socket.socket, core: ServiceCore, sequencer: Sequencer, limits: IntakeLimits) -> None:
        self._listener = listener
        self._core = core
        self._sequencer = sequencer
        self.limits = limits
        self.counters = ConnectionCounters()
        self.turned_at = time.monotonic()
        """When the loop turned last: how the watchdog knows that it lives."""
        self._buffer = memoryview(bytearray(limits.read_bytes_max))
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
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker.clear)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
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
        self._selector.close()
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
        ready = self._selector.select(_QUIET_S if is_stopping else _TURN_S)
        self.turned_at = now = time.monotonic()
        read = [found for key, mask in ready if (found := self._handle(key.data, mask)) is not None]
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

    def _handle(self, target: _Peer | Callable[[], None], mask: int) -> _Peer | None:
        """Returns a peer that was read from."""
        if not isinstance(target, _Peer):
            target()
            return None
        if mask & selectors.EVENT_WRITE:
            self._write(target)
        if mask & selectors.EVENT_READ and target.sock.fileno() >= 0:
            return target if self._read(target) else None
        return None

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
        self._selector.register(sock, selectors.EVENT_READ, joined)

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
            for taken in peer.connection.feed(self._buffer[:size]):
                refused, reason = self._sequencer.take(taken.worker.guid, taken.number, taken.groups, taken.payload)
                if refused:
                    peer.connection.refuse(refused, reason)
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

    def _write(self, peer: _Peer) -> None:
        connection = peer.connection
        if peer.sock.fileno() < 0:
            return
        try:
            while connection.outgoing:
                connection.outgoing = connection.outgoing[peer.sock.send(connection.outgoing) :]
        except BlockingIOError:
            pass
        except OSError:
            connection.outgoing = b""
            connection.end()
        is_over = connection.state is ConnectionState.ENDED and not connection.outgoing
        if is_over or len(connection.outgoing) > _OUTGOING_BYTES_MAX:
            self._close(peer)
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if mask != peer.mask:
            peer.mask = mask
            self._selector.modify(peer.sock, mask, peer)

    def _close(self, peer: _Peer) -> None:
        peer.connection.end()
        if peer.sock.fileno() >= 0:
            del self._peers[peer.sock.fileno()]
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _check_times(self, now: float) -> None:
        if self._core.endings != self._seen_endings or now >= self._look_at:
            # Seldom, since this looks at every connection.
            self._seen_endings = self._core.endings
            self._look_at = now + _TURN_S
            self._look_at_all(now)
        if not self._is_accepting and self._stop_by is None and now >= self._accept_at:
            self._is_accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _look_at_all(self, now: float) -> None:
        """Close connections that have ended, and those that never greeted."""
        for peer in [peer for peer in self._peers.values() if peer.connection.state is not ConnectionState.OPEN]:
            if peer.connection.state is ConnectionState.ENDED:
                self._write(peer)
            elif now - peer.since > self.limits.hello_timeout_s:
                self.counters.greeting_timeouts += 1
                self._close(peer)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._listener)
