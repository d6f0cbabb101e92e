"""A small server for questions with one answer each: bounded threads, and one deadline for question and answer."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable

from pubsub_api.core.errors import LimitReached
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

ANSWER_S = 2.0
"""How long a client may take, from the connection to the end of the answer."""
ASKERS_MAX = 16
"""Each costs a thread for a moment.  One more takes the place of the client that has been slow for longest."""
_LEAVE_S = 0.1
"""How long a client whose connection was cut may take to leave its place; then the next one is cut."""
_PAUSE_S = 0.2
"""A connection that cannot be accepted, for want of a descriptor, say, is tried again after this long."""

Answer = Callable[[socket.socket, float], None]
"""Called with a connection and the time, by the monotonic clock, by which it must be done.  May raise OSError."""


class AnsweringServer(Closeable):
    """Answers on threads of its own.  Takes the listening socket over.  Raises LimitReached when there is no thread."""

    def __init__(
        self, listener: socket.socket, answer: Answer, *, askers_max: int = ASKERS_MAX, answer_s: float = ANSWER_S
    ) -> None:
        self._listener = listener
        self._answer = answer
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(askers_max)
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, float] = {}
        """Connection -> when it was accepted, the oldest first.  A socket is closed after it was taken out."""
        self._answer_s = answer_s
        self._thread = threading.Thread(target=self._run, name="heliograph-health", daemon=True)
        self._log = RateLimitedLog(LOG)
        listener.setblocking(True)
        try:
            start_thread(self._thread)
        except LimitReached:
            listener.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    self._log("The health endpoint cannot accept a connection: %s. It will be tried again.", error)
                    self._closing.wait(_PAUSE_S)
                continue
            if not self._take_place():
                self._log("The health endpoint turns a client away: too many others ask at the same time.")
                sock.close()
                continue
            with self._lock:
                self._clients[sock] = time.monotonic()
            # Each in a thread of its own: a slow client holds up only itself.
            answering = threading.Thread(target=self._serve, args=(sock,), name="heliograph-health-answer", daemon=True)
            try:
                start_thread(answering)
            except LimitReached as error:
                self._log("The health endpoint cannot answer: %s", error)
                self._leave(sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            # A client that went away, or does not take the answer, is not our problem.
            with contextlib.suppress(OSError):
                sock.settimeout(self._answer_s)
                self._answer(sock, time.monotonic() + self._answer_s)
                sock.shutdown(socket.SHUT_WR)
        finally:
            self._leave(sock)

    def _leave(self, sock: socket.socket) -> None:
        with self._lock:
            del self._clients[sock]
        sock.close()
        self._places.release()

    def _take_place(self) -> bool:
        """Whether there is a place for one more client.  Slow ones must not keep a probe away."""
        if self._places.acquire(blocking=False):
            return True
        with self._lock:
            oldest_first = list(self._clients)
        return any(self._places.acquire(timeout=_LEAVE_S if self._cut_slow(sock) else 0) for sock in oldest_first)

    def _cut_slow(self, sock: socket.socket) -> bool:
        """End a connection, unless it has lasted for longer than a client may be slow: it is in use then."""
        with self._lock:
            is_slow = time.monotonic() - self._clients.get(sock, -math.inf) < self._answer_s
            if is_slow:
                self._log("The health endpoint cuts a slow client, because others ask.")
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # its thread, which waits for it, goes on at once
        return is_slow
