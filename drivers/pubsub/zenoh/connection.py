"""An outgoing connection: a session that is opened, watched and, when it is lost, awaited again by its own thread.

Theory of operation.  Everything about a connection happens on its thread, which runs what others post to it, one after
the other; there is nothing to lock.  Zenoh's own threads only post.

Zenoh restores a lost link by itself.  Between peers it also waits for one that never was there; a client of a router
cannot be opened until the router answers, and that is tried again here.
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
"""What a connection counts: losses and attempts that failed, and what Zenoh would not do on an open session."""


def _nothing() -> None:
    """Wakes up a thread."""


_NEVER: tuple[float, Callable[[], None]] = (math.inf, _nothing)


class ZenohConnection:
    """A thread that owns a session to ``addresses``.  Subclasses say what to do when it is opened, comes up, goes down.

    Several addresses are alternatives of one another, as routers are.
    """

    def __init__(
        self, settings: ZenohSettings, addresses: tuple[str, ...], extra: Mapping[str, object], tally: Tally
    ) -> None:
        """Check the configuration; nothing is opened yet.  Raises InvalidConfig."""
        self._settings = settings
        self._tally = tally
        self.address = addresses[0]
        # Of several peers at one router Zenoh leaves some without data, so what connects to a router is its client.
        self._is_client = settings.mode != "peer"
        self._config = make_config(
            settings,
            "client" if self._is_client else "peer",
            {
                "connect/endpoints": list(addresses),
                # Negative: for ever, in the background.  A client would block in open(), so it gets one attempt.
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
        """Ask the thread to close the session and to end.  Returns at once; `join` waits for it."""
        self._is_stopped.set()
        self._post(_nothing)

    def join(self) -> None:
        """Wait until the session is closed and the thread has ended.  Takes open_timeout and a close() at most; a
        thread that Zenoh keeps for longer is given up and logged."""
        join_thread(self._thread, 2 * STUCK_S + self._settings.common.connect_timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has still to end."""
        return self._thread.is_alive()

    def _post(self, command: Callable[[], None]) -> None:
        """Have the thread call ``command``.  From any thread."""
        self._commands.put(command)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have the thread call ``action`` later, instead of what was due before."""
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
            self._closing()
            if self._session is not None:
                self._session.close()
                # Zenoh's callbacks refer to us: without this the session and its shared memory would be freed by the
                # next collection of garbage, or never.
                self._session = None
            self._closed()

    def _step(self) -> None:
        """Run what is due, or else wait for the next command and run that."""
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
            # What Zenoh refuses on an open session is refused because the link breaks: its report is on the way.
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
            self._opened(self._session)
        except LimitReached as error:
            self._session.close()
            self._session = None
            self._open_later()
            LOG.warning("zenoh cannot be used at %s yet: %s", self.address, error)
            return
        # Called by Zenoh's threads, seldom: callbacks of the kind that needs no thread of its own.
        on_link = zenoh.handlers.Callback(self._on_link, indirect=False)
        on_transport = zenoh.handlers.Callback(self._on_transport, indirect=False)
        info = self._session.zenoh.info
        self._session.keep(info.declare_link_events_listener(on_link, history=True))
        self._session.keep(info.declare_transport_events_listener(on_transport, history=True))

    def _on_link(self, event: zenoh.LinkEvent) -> None:
        # A transport is announced before Zenoh routes by it, and its link after that and after the declarations were
        # sent.  So what is asked now comes behind them.
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
            self._went_down("another process answers at this address")
        self._peer = peer
        self._came_up()

    def _link_lost(self, peer: str) -> None:
        if peer == self._peer:
            self._peer = None
            self._tally.add("link_failures")
            self._went_down("the other side closed the link, or was silent for longer than its lease")

    def _opened(self, session: ZenohSession) -> None:
        """The session is open, the link perhaps not yet.  On the thread."""

    def _came_up(self) -> None:
        """The link is up.  On the thread."""

    def _went_down(self, reason: str) -> None:
        """The link is down.  On the thread."""

    def _closing(self) -> None:
        """The session is about to be closed.  On the thread."""

    def _closed(self) -> None:
        """The session is closed.  On the thread."""
