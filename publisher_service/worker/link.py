"""A worker process's connection to the publisher service, and the one thread that looks after it.

A thread that has something to send writes it to the socket, which never blocks, and reads what was acknowledged
meanwhile: a lone event needs no other thread.  The thread connects, connects again, and writes what the others could
not: the end of a flood, and what did not fit the socket's buffer.  It reads while a thread waits for an acknowledgement
or events do, and otherwise once a second, so that nothing the service says stays unread.

All methods but `start` and the thread's own are called with the owner's lock held.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import select
import socket
import threading
import time
from collections.abc import Callable

from publisher_service.core.messages import MessageReader
from publisher_service.core.worker_side import WorkerCore, WorkerState
from publisher_service.errors import WorkerProtocolError, WorkerRefused
from pubsub_api.errors import LimitReached
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.sockets import socket_file
from pubsub_api.runtime.sockets.waking import Waker
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_BUFFER_BYTES = 1024 * 1024
_UNREAD_S = 1.0
"""What the service says to a worker that does not wait for it is read after this time at the latest."""
_REPLY_BYTES_MAX = 64 * 1024
"""Nothing the service says is longer."""


class WorkerLink:
    def __init__(
        self,
        path: pathlib.Path,
        core: WorkerCore,
        lock: threading.Lock,
        on_progress: Callable[[], None],
        has_waiters: Callable[[], bool],
        backoff: Backoff,
    ) -> None:
        """``has_waiters`` tells whether a thread waits for progress.  Raises LimitReached."""
        self._path = path
        self._core = core
        self._lock = lock
        self._on_progress = on_progress
        self._has_waiters = has_waiters
        self._backoff = backoff
        self._sock: socket.socket | None = None
        self._lost: list[socket.socket] = []
        """Connections that are given up and not closed yet."""
        self._inbox = MessageReader(_REPLY_BYTES_MAX)
        self._outgoing = memoryview(b"")
        self._is_blocked = False
        """The socket's buffer is full: the thread waits until there is room again."""
        self._is_reading = True
        """The thread waits for what the service says."""
        self._is_writing = False
        """The thread had to write what had collected, and that is not acknowledged: more will have collected then."""
        self._is_idle = False
        """For a while no event was sent."""
        self._is_asleep = False
        self._is_stopping = False
        self._connect_at = 0.0
        self._is_loss_told = False
        try:
            self._waker = Waker()
        except OSError as error:
            raise LimitReached(f"worker {core.name} cannot begin: {error}") from error
        self.connects = 0
        self.disconnects = 0
        self.refusals = 0
        self._thread = threading.Thread(target=self._run, name="heliograph-worker", daemon=True)

    def start(self) -> None:
        """Raises LimitReached, and is not to be used then."""
        try:
            start_thread(self._thread)
        except LimitReached:
            self._waker.close()
            raise

    # -- called with the lock held, by any thread

    @property
    def is_open(self) -> bool:
        return self._core.state is WorkerState.OPEN

    def wake(self) -> None:
        """Have the thread look at everything."""
        if self._is_asleep:
            self._is_asleep = False
            self._waker.wake()

    def read(self) -> None:
        """Take what the service has said so far, and write what that has made due: no other thread would notice."""
        sock = self._sock
        if sock is None:
            return
        try:
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"{error}")
            return
        self._take(data)
        self.write(is_urgent=False)

    def write_behind(self) -> None:
        """Write what was added while something is under way, if that is right now, or leave it to the thread.

        Of lone events one may be under way when the next one is written: most often it is acknowledged by then, and to
        read that first would delay the next one.
        """
        if not self._is_reading and self._core.under_way == 1:
            self.write()
            self.read()
            return
        self.read()
        if self._core.open:
            self.await_answer()

    def await_answer(self) -> None:
        """Have the thread read what the service says next."""
        if not self._is_reading:
            self.wake()

    def write(self, *, is_urgent: bool = True) -> None:
        """Write what there is, as far as the socket takes it.  ``is_urgent``: see `WorkerCore.next_message`."""
        sock = self._sock
        if sock is None or self._is_blocked:
            return
        try:
            while True:
                if not self._outgoing:
                    message = self._core.next_message(is_urgent=is_urgent)
                    if message is None:
                        return
                    self._outgoing = memoryview(message)
                self._outgoing = self._outgoing[sock.send(self._outgoing) :]
        except BlockingIOError:
            self._is_blocked = True
            self.wake()
        except OSError as error:
            self._lose(f"{error}")

    def stop(self, *, with_bye: bool) -> None:
        """Have the thread end; wait for it with `join`, without the lock."""
        if with_bye and self._sock is not None and self.is_open and not self._outgoing:
            with contextlib.suppress(OSError):  # it is only polite
                self._sock.send(self._core.bye())
        self._is_stopping = True
        self._is_asleep = True
        self.wake()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        while True:
            with self._lock:
                if self._is_stopping:
                    break
                if self._sock is None and time.monotonic() >= self._connect_at:
                    self._connect()
                sock, position = self._sock, self._core.position
                self._is_reading = self._must_read()
                if sock is not None:
                    # That the other end is closed is told in any case.
                    mask = (select.POLLIN if self._is_reading else 0) | (select.POLLOUT if self._is_blocked else 0)
                    poll.register(sock, mask)
                wait_s = self._wait_s()
                self._is_asleep = True
            ready = dict(poll.poll(None if wait_s is None else max(0.0, wait_s) * 1000 + 1))
            if self._waker.fd in ready:
                self._waker.clear()
            with self._lock:
                self._is_asleep = False
                self._is_idle = not ready and position == self._core.position
                if sock is not None:
                    poll.unregister(sock)
                    if sock is self._sock and not self._is_stopping:  # the service closes it after the goodbye
                        self._handle(ready.get(sock.fileno(), 0))
                self._close_lost()
        with self._lock:
            self._drop_socket()
            self._close_lost()
            self._waker.close()

    def _must_read(self) -> bool:
        """Whether the thread has to look at what the service says: otherwise senders do, with their next event."""
        return (
            not self.is_open
            or self._is_blocked
            or self._is_writing
            or self._is_idle
            or bool(self._core.open)
            or self._has_waiters()
        )

    def _wait_s(self) -> float | None:
        """How long the thread may sleep; None when it is woken by all that can happen."""
        if self._sock is None:
            return self._connect_at - time.monotonic()
        return None if self._is_reading else _UNREAD_S

    def _handle(self, events: int) -> None:
        if events & select.POLLOUT:
            self._is_blocked = False
        batches = self._core.batches
        self.read()
        self.write(is_urgent=False)
        is_written = self._core.batches > batches
        self._is_writing = bool(self._core.under_way) and (is_written or self._is_writing)

    def _connect(self) -> None:
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            sock.connect(str(self._path))
            peer = socket_file.credentials(sock)
            if not socket_file.is_trusted(peer):
                raise PermissionError(f"{self._path} belongs to process {peer.pid} of user {peer.uid}")
        except OSError as error:
            if sock is not None:
                sock.close()
            self.refusals += not isinstance(error, FileNotFoundError | ConnectionRefusedError)
            self._later(f"{error}")
            return
        self._sock = sock
        self._inbox = MessageReader(_REPLY_BYTES_MAX)
        self._outgoing = memoryview(self._core.connected())
        self._is_blocked = False
        self.write()

    def _take(self, data: bytes) -> None:
        """Bytes came, none at the end of the connection."""
        if not data:
            self._lose("the service closed it")
            return
        refused_before = self._core.counters.refused_events
        try:
            for payload in self._inbox.feed(data):
                self._receive(payload)
        except WorkerProtocolError as error:
            self.refusals += isinstance(error, WorkerRefused)
            self._lose(f"{error}")
        if self._core.counters.refused_events > refused_before:
            LOG.error("Worker %s: the publisher service could not publish %d events: %s",
                      self._core.name, self._core.counters.refused_events - refused_before,
                      self._core.counters.refused_reason)  # fmt: skip
        self._on_progress()

    def _receive(self, payload: bytes) -> None:
        was_open = self.is_open
        self._core.receive(payload)
        if self.is_open and not was_open:
            self.connects += 1
            self._backoff.reset()
            self._is_loss_told = False
            LOG.info("Worker %s is connected to the publisher service at %s.", self._core.name, self._path)

    def _lose(self, reason: str) -> None:
        self.disconnects += self.is_open
        self._drop_socket()
        self._later(reason)

    def _later(self, reason: str) -> None:
        """Try again after a while, and say so once."""
        self._connect_at = time.monotonic() + self._backoff.next_s()
        if not self._is_loss_told:
            self._is_loss_told = True
            LOG.warning("Worker %s has no connection to the publisher service at %s: %s. Events wait.",
                        self._core.name, self._path, reason)  # fmt: skip
        self.wake()

    def _drop_socket(self) -> None:
        """Have nothing more to do with the connection.  The thread closes it: it may be waiting for it, and its number
        must not be another file's by then."""
        self._core.lost()
        self._outgoing = memoryview(b"")
        self._is_blocked = False
        if self._sock is not None:
            self._lost.append(self._sock)
            self._sock = None

    def _close_lost(self) -> None:
        while self._lost:
            self._lost.pop().close()
