"""Makes any driver lose, repeat, reorder, delay, freeze and disconnect, between two real processes too.

`FaultyPubSub` wraps a driver object.  Its publishers are the driver's own; its subscribers stand between the driver and
the receiver, and do to the frames what the `Faults` say before the receiver sees them.  Queries suffer on their way
out, replies on their way in.  With no fault set, the wrapped driver behaves as before: it passes the conformance suite.

The faults of the ``memory`` driver are in its bus: see `memory_bus`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import SplitResult

from oslo_config import cfg

from pubsub_api import loading
from pubsub_api.driver import (
    Asked,
    Capabilities,
    Connected,
    Disconnected,
    LinkReport,
    PublisherApi,
    PubSubApi,
    Receiver,
    SubscriberApi,
)
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.errors import Closed, TransportUnavailable, UsageError
from pubsub_api.runtime.forking import ForkGuard
from pubsub_api.testing.faults import FaultInjector, Faults

LOG = logging.getLogger(__name__)


class BusControl(Protocol):
    """The control of a bus of the ``memory`` driver."""

    faults: Faults

    def disconnect(self) -> None: ...
    def reconnect(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def statistics(self) -> Any: ...


def memory_bus(name: str = "default") -> BusControl:
    """The bus behind ``memory://name``, made when it does not exist.  Hold it as long as its faults shall last."""
    control: BusControl = loading.load_driver("memory").bus(name)  # type: ignore[attr-defined]
    return control


class FaultyPubSub(PubSubApi):
    """A driver whose subscribers are on a bad line.  ``faults`` may be changed at any time, from any thread."""

    def __init__(self, inner: PubSubApi, faults: Faults) -> None:
        super().__init__(inner.conf)
        self._inner = inner
        self._subscribers = 0
        self.faults = faults

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        """Not usable: this wraps a driver that is configured already."""
        raise UsageError(f"{cls.__name__} wraps a driver object; configure that one ({url.scheme}://) on {conf!r}")

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def listen_addresses(self) -> list[str]:
        return self._inner.listen_addresses()

    def get_publisher(self) -> PublisherApi:
        return self._inner.get_publisher()

    def get_subscriber(self) -> FaultySubscriber:
        self._subscribers += 1
        return FaultySubscriber(self._inner.get_subscriber(), self.faults, str(self._subscribers))


class FaultySubscriber(SubscriberApi):
    """Stands between a driver's subscriber and the receiver.  One thread of its own lets go what was held.

    The receiver is called by the driver's thread or by that one, never by both at a time: the thread that calls has the
    turn.  A turn is not a lock, so that a thread which waits for it gives up when the subscriber is closed; otherwise a
    receiver that calls ``close`` would wait for a thread which waits for the receiver.
    """

    def __init__(self, inner: SubscriberApi, faults: Faults, name: str = "") -> None:
        self._inner = inner
        self._guard = ForkGuard("session")
        self._faults = faults
        self._receiver: GuardedReceiver | None = None
        self._frames = FaultInjector(faults, f"frames {name}")
        """Used by the thread that has the turn."""
        self._query_lock = threading.Lock()
        self._queries = FaultInjector(faults, f"queries {name}")
        self._turn = threading.Condition()
        self._has_turn = False
        self._is_closed = False
        self._is_woken = False
        self._next_due: float | None = None
        self._up: dict[str, bool] = {}
        """Address -> what the driver reported last.  What the receiver was told also depends on the faults."""
        self._told_up: set[str] = set()
        self._timer = threading.Thread(target=self._run, name=f"faulty-{name}", daemon=True)

    def initialize(self, receiver: Receiver) -> None:
        self._receiver = GuardedReceiver(receiver)
        self._inner.initialize(self)

    def register_topic(self, topic_filter: str) -> bool:
        return self._inner.register_topic(topic_filter)

    def unregister_topic(self, topic_filter: str) -> bool:
        return self._inner.unregister_topic(topic_filter)

    def register_listen_address(self, address: str) -> bool:
        return self._inner.register_listen_address(address)

    def unregister_listen_address(self, address: str) -> bool:
        return self._inner.unregister_listen_address(address)

    def daemonize(self) -> None:
        if self._receiver is None:
            raise UsageError("daemonize is called after initialize")
        self._inner.daemonize()
        self._timer.start()
        self._faults.watch(self)

    @property
    def is_running(self) -> bool:
        return self._inner.is_running

    @property
    def receiver_errors(self) -> int:
        """Of the receiver, and of this object in its place."""
        return self._inner.receiver_errors + (self._receiver.errors if self._receiver is not None else 0)

    @property
    def counters(self) -> Mapping[str, int]:
        """Of the driver.  What the faults did is counted by `Faults`."""
        return self._inner.counters

    def query(self, frame: bytes) -> int | None:
        """As the contract says.  A query that the faults drop or delay is not an error: None is returned."""
        self._guard.check()
        if self._is_closed:
            raise Closed("the subscriber is closed")
        if self._faults.settings.disconnected:
            raise TransportUnavailable("the link was disconnected by a fault")
        with self._query_lock:
            passed = self._queries.push((frame,), time.monotonic())
        self._wake()
        responders = None
        for query in passed:
            responders = self._inner.query(query)
        return responders

    def close(self) -> None:
        if self._guard.is_child:
            self._inner.close()
            return
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        self._inner.close()
        if self._timer.ident is not None and self._timer is not threading.current_thread():
            self._timer.join()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Called by the driver."""
        self._take_turn(lambda: self._hand_over(self._frames_that_pass(frames)))

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """Called by the driver.  What is no frame is spared, unless the link is cut."""
        settings = self._faults.settings
        if settings.partitioned or settings.disconnected:
            self._faults.add_counts(cut=1)
        elif self._receiver is not None:
            receiver = self._receiver
            self._take_turn(lambda: receiver.on_foreign(topic, payload))

    def on_link(self, report: LinkReport) -> None:
        """Called by the driver."""
        self._take_turn(lambda: self._pass_report(report))

    def on_faults(self) -> None:
        """Called by `Faults`."""
        self._wake()

    def _pass_report(self, report: LinkReport) -> None:
        if isinstance(report, Connected | Disconnected):
            self._up[report.address] = isinstance(report, Connected)
            self._report_links(getattr(report, "reason", ""))
        elif self._receiver is not None and (isinstance(report, Asked) or report.address in self._told_up):
            self._receiver.on_link(report)

    def _report_links(self, reason: str) -> None:
        """Tell the receiver what it should believe of each link, where that has changed."""
        is_cut = self._faults.settings.disconnected
        for address, is_up in self._up.items():
            shown_up = is_up and not is_cut
            if self._receiver is None or shown_up == (address in self._told_up):
                continue
            if shown_up:
                self._told_up.add(address)
                self._receiver.on_link(Connected(address))
            else:
                self._told_up.remove(address)
                self._receiver.on_link(Disconnected(address, reason))

    def _frames_that_pass(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        return frames if self._frames.is_idle else self._frames.push(frames, time.monotonic())

    def _hand_over(self, frames: Sequence[bytes]) -> None:
        if frames and self._receiver is not None:
            self._receiver.on_frames(frames)

    def _take_turn(self, work: Callable[[], None]) -> None:
        """Do ``work`` when no other thread does any, or not at all when the subscriber is closed."""
        with self._turn:
            self._turn.wait_for(lambda: self._is_closed or not self._has_turn)
            if self._is_closed:
                return
            self._has_turn = True
        try:
            work()
        finally:
            with self._turn:
                self._has_turn = False
                due = self._frames.next_due
                if due != self._next_due:
                    self._next_due, self._is_woken = due, True
                self._turn.notify_all()

    def _wake(self) -> None:
        with self._turn:
            self._is_woken = True
            self._turn.notify_all()

    def _run(self) -> None:
        while self._wait():
            self._take_turn(self._release)
            self._release_queries()

    def _wait(self) -> bool:
        """Sleep until something is due or has changed; False when the subscriber is closed."""
        with self._query_lock:
            dues = [due for due in (self._next_due, self._queries.next_due) if due is not None]
        with self._turn:
            timeout_s = max(0.0, min(dues) - time.monotonic()) if dues else None
            self._turn.wait_for(lambda: self._is_closed or self._is_woken, timeout_s)
            self._is_woken = False
            return not self._is_closed

    def _release(self) -> None:
        self._report_links("disconnected by a fault")
        self._hand_over(self._frames.due(time.monotonic()))

    def _release_queries(self) -> None:
        with self._query_lock:
            queries = self._queries.due(time.monotonic())
        for query in queries:
            try:
                self._inner.query(query)
            except (TransportUnavailable, Closed) as error:
                LOG.debug("a delayed query was lost: %s", error)
