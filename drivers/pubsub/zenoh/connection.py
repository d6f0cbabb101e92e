"""An outgoing connection: a thread that opens a session, watches it, and tries again when the link is lost.

Only the thread of a connection works on it.  It runs the commands that other threads, also Zenoh's own, post to it, one
after the other; so no lock is needed.

Zenoh restores a lost link by itself.  A peer also waits for another peer that was never there.  The session of a client
cannot be opened before its router answers, so the thread tries again.
"""

from __future__ import annotations

import functools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping

import zenoh

from heliograph_drivers.pubsub.zenoh.config import ZenohSettings
from heliograph_drivers.pubsub.zenoh.session import STUCK_S, ZenohSession, brief, make_config
from pubsub_api.driver_kit import Backoff, Tally, join_thread, start_thread
from pubsub_api.errors import LimitReached

LOG = logging.getLogger(__name__)

WAIT_MAX_S = 3600.0
COUNTED = ("link_failures", "commands_refused")
"""The counters of a connection: lost links and failed attempts, and commands that Zenoh refused on an open session."""


def _nothing() -> None:
    """A command that only wakes the thread."""


_NEVER: tuple[float, Callable[[], None]] = (math.inf, _nothing)


class ZenohConnection:
    """A thread that owns a session to one of ``addresses``.  Subclasses override the methods ``_on_...``, which the
    thread calls.
    """

    def __init__(
        self, settings: ZenohSettings, addresses: tuple[str, ...], extra: Mapping[str, object], tally: Tally
    ) -> None:
        """Check the configuration.  Does not connect yet.  Raises InvalidConfig."""
        self._settings = settings
        self._tally = tally
        self.address = addresses[0]
        # With several peers at one router, Zenoh leaves some without data; so a router's peers connect as clients.
        self._is_client = settings.mode != "peer"
        self._config = make_config(
            settings,
            "client" if self._is_client else "peer",
            {
                "connect/endpoints": list(addresses),
                # Negative: for ever, in the background.  A client would block in open(), so it makes one attempt.
                "connect/timeout_ms": 0 if self._is_client else -1,
                **extra,
            },
        )
        self._backoff = Backoff(settings.retry_interval_s, settings.common.retry_interval_max)
        self._session: ZenohSession | None = None
        self._peer: str | None = None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timer = _NEVER
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"zenoh {self.address}", daemon=True)

    def start(self) -> None:
        start_thread(self._thread)

    def stop(self) -> None:
        """Ask the thread to close the session and to end.  Does not wait; `join` does."""
        self._is_stopped.set()
        self._post(_nothing)

    def join(self) -> None:
        """Wait until the session is closed and the thread has ended.  Blocks for a bounded time; a thread that Zenoh
        keeps for longer is given up and logged."""
        join_thread(self._thread, 2 * STUCK_S + self._settings.common.connect_timeout)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _post(self, command: Callable[[], None]) -> None:
        """Have the thread call ``command``.  Call it from any thread."""
        self._commands.put(command)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have the thread call ``action`` after a delay; replaces the action that was set before."""
        self._timer = (time.monotonic() + delay_s, action)

    def _run(self) -> None:
        self._after(0, self._try_open)
        try:
            while not self._is_stopped.is_set():
                self._step()
        except Exception:
            self._tally.add("link_failures")
            LOG.exception("the connection to %s ends because of an error in the driver", self.address)
        finally:
            self._on_closing()
            if self._session is not None:
                self._session.close()
                # Zenoh's callbacks refer to this object: as a cycle, the session and its shared memory would be freed
                # late or never.
                self._session = None
            self._on_closed()

    def _step(self) -> None:
        """Run the action that is due, or wait for the next command and run it."""
        due, action = self._timer
        wait_s = due - time.monotonic()
        if wait_s <= 0:
            self._timer = _NEVER
            command = action
        else:
            try:
                command = self._commands.get(timeout=min(wait_s, WAIT_MAX_S))
            except queue.Empty:
                return
        try:
            command()
        except zenoh.ZError as error:
            # Zenoh refuses commands on an open session when the link breaks; the report of that will follow.
            self._tally.add("commands_refused")
            LOG.warning("zenoh at %s: %s", self.address, brief(error))

    def _open_later(self) -> None:
        self._tally.add("link_failures")
        self._after(self._backoff.next_s(), self._try_open)

    def _try_open(self) -> None:
        try:
            self._session = ZenohSession(self._config)
        except zenoh.ZError as error:
            self._open_later()
            LOG.debug("zenoh cannot connect to %s yet: %s", self.address, brief(error))
            return
        try:
            self._on_opened(self._session)
        except LimitReached as error:
            self._session.close()
            self._session = None
            self._open_later()
            LOG.warning("zenoh cannot be used at %s yet: %s", self.address, error)
            return
        # Zenoh's threads call them rarely, so they need no thread of their own (indirect=False).
        on_link = zenoh.handlers.Callback(self._on_link, indirect=False)
        on_transport = zenoh.handlers.Callback(self._on_transport, indirect=False)
        info = self._session.zenoh.info
        self._session.keep(info.declare_link_events_listener(on_link, history=True))
        self._session.keep(info.declare_transport_events_listener(on_transport, history=True))

    def _on_link(self, event: zenoh.LinkEvent) -> None:
        # Zenoh announces a link after it has sent the declarations over it, so a question that is asked now comes
        # behind them.  (It announces the transport too early: before it routes by it.)
        if event.kind == zenoh.SampleKind.PUT:
            self._post(functools.partial(self._link_made, str(event.link.zid)))

    def _on_transport(self, event: zenoh.TransportEvent) -> None:
        if event.kind == zenoh.SampleKind.DELETE:
            self._post(functools.partial(self._link_lost, str(event.transport.zid)))
        elif event.transport.whatami == zenoh.WhatAmI.ROUTER and not self._is_client:
            LOG.warning("a router answers at %s: set [zenoh] mode = client, peers may miss frames there", self.address)

    def _link_made(self, peer: str) -> None:
        if peer == self._peer:
            return
        if self._peer is not None:
            self._tally.add("link_failures")
            self._on_link_down("another process answers at this address")
        self._peer = peer
        self._on_link_up()

    def _link_lost(self, peer: str) -> None:
        if peer == self._peer:
            self._peer = None
            self._tally.add("link_failures")
            self._on_link_down("the other side closed the link, or was silent for longer than its lease")

    def _on_opened(self, session: ZenohSession) -> None:
        """Called when the session is open; the link may come up later."""

    def _on_link_up(self) -> None:
        """Called when the link is up."""

    def _on_link_down(self, reason: str) -> None:
        """Called when the link is down."""

    def _on_closing(self) -> None:
        """Called before the session is closed."""

    def _on_closed(self) -> None:
        """Called after the session was closed."""
