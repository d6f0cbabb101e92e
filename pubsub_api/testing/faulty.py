"""Makes any driver lose, repeat, reorder, delay, freeze and disconnect, also between real processes.

`FaultyPubSub` wraps a driver object.  Its publishers are those of the driver.  Its subscribers are between the driver
and the receiver, and apply the `Faults` to the frames that the driver receives, and to the queries that it sends.
Without faults it behaves as the wrapped driver, and passes the conformance suite.

The ``memory`` driver has faults of its own: see `memory_bus`.
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
    """The bus behind ``memory://name``, made if it does not exist.  Keep a reference as long as its faults last."""
    control: BusControl = loading.load_driver("memory").bus(name)  # type: ignore[attr-defined]
    return control


class FaultyPubSub(PubSubApi):
    """A driver whose subscribers have a faulty link.  ``faults`` may be changed at any time, from any thread."""

    def __init__(self, inner: PubSubApi, faults: Faults) -> None:
        super().__init__(inner.conf)
        self._inner = inner
        self._subscribers = 0
        self.faults = faults

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        """Always raises UsageError: this wraps a driver that is configured already."""
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
    """Applies faults between a driver's subscriber and the receiver.  Its thread passes on frames that were held.

    Threads of the driver, and this thread, call the receiver one at a time.  This is not a lock: a thread that waits to
    call gives up when the subscriber is closed.  Otherwise a receiver that calls ``close`` would wait for a thread that
    waits for the receiver.
    """

    def __init__(self, inner: SubscriberApi, faults: Faults, name: str = "") -> None:
        self._inner = inner
        self._guard = ForkGuard("session")
        self._faults = faults
        self._receiver: GuardedReceiver | None = None
        self._frames = FaultInjector(faults, f"frames {name}")
        """Used inside of `_call_exclusively`."""
        self._query_lock = threading.Lock()
        self._queries = FaultInjector(faults, f"queries {name}")
        self._changed = threading.Condition()
        """Guards the next four attributes."""
        self._is_calling = False
        self._is_closed = False
        self._is_woken = False
        self._next_due: float | None = None
        self._is_up: dict[str, bool] = {}
        """Address -> the last report of the driver.  What the receiver is told also depends on the faults."""
        self._reported_up: set[str] = set()
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
        """Errors of the receiver, and of this object as the receiver of the driver."""
        return self._inner.receiver_errors + (self._receiver.errors if self._receiver is not None else 0)

    @property
    def counters(self) -> Mapping[str, int]:
        """The counters of the driver.  `Faults` counts what the faults did."""
        return self._inner.counters

    def query(self, frame: bytes) -> int | None:
        """As in the contract.  Returns None for a query that the faults drop or delay."""
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
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._inner.close()
        if self._timer.ident is not None and self._timer is not threading.current_thread():
            self._timer.join()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Called by the driver."""
        self._call_exclusively(lambda: self._deliver(self._frames_that_pass(frames)))

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """Called by the driver.  A message that is no frame is only lost when the link is cut."""
        settings = self._faults.settings
        if settings.partitioned or settings.disconnected:
            self._faults.add_counts(cut=1)
        elif self._receiver is not None:
            receiver = self._receiver
            self._call_exclusively(lambda: receiver.on_foreign(topic, payload))

    def on_link(self, report: LinkReport) -> None:
        """Called by the driver."""
        self._call_exclusively(lambda: self._pass_report(report))

    def on_faults(self) -> None:
        """Called by `Faults`."""
        self._wake()

    def _pass_report(self, report: LinkReport) -> None:
        if isinstance(report, Connected | Disconnected):
            self._is_up[report.address] = isinstance(report, Connected)
            self._report_links(getattr(report, "reason", ""))
        elif self._receiver is not None and (isinstance(report, Asked) or report.address in self._reported_up):
            self._receiver.on_link(report)

    def _report_links(self, reason: str) -> None:
        """Report to the receiver each link whose state, with the faults, has changed."""
        is_cut = self._faults.settings.disconnected
        for address, is_up in self._is_up.items():
            shown_up = is_up and not is_cut
            if self._receiver is None or shown_up == (address in self._reported_up):
                continue
            if shown_up:
                self._reported_up.add(address)
                self._receiver.on_link(Connected(address))
            else:
                self._reported_up.remove(address)
                self._receiver.on_link(Disconnected(address, reason))

    def _frames_that_pass(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        return frames if self._frames.is_idle else self._frames.push(frames, time.monotonic())

    def _deliver(self, frames: Sequence[bytes]) -> None:
        if frames and self._receiver is not None:
            self._receiver.on_frames(frames)

    def _call_exclusively(self, call: Callable[[], None]) -> None:
        """Do the call while no other thread does one; drop it when the subscriber is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._is_calling)
            if self._is_closed:
                return
            self._is_calling = True
        try:
            call()
        finally:
            with self._changed:
                self._is_calling = False
                due = self._frames.next_due
                if due != self._next_due:
                    self._next_due, self._is_woken = due, True
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            self._call_exclusively(self._release)
            self._release_queries()

    def _wait(self) -> bool:
        """Block until frames are due or `_wake` was called; False when the subscriber is closed."""
        with self._query_lock:
            dues = [due for due in (self._next_due, self._queries.next_due) if due is not None]
        with self._changed:
            timeout_s = max(0.0, min(dues) - time.monotonic()) if dues else None
            self._changed.wait_for(lambda: self._is_closed or self._is_woken, timeout_s)
            self._is_woken = False
            return not self._is_closed

    def _release(self) -> None:
        self._report_links("disconnected by a fault")
        self._deliver(self._frames.due(time.monotonic()))

    def _release_queries(self) -> None:
        with self._query_lock:
            queries = self._queries.due(time.monotonic())
        for query in queries:
            try:
                self._inner.query(query)
            except (TransportUnavailable, Closed) as error:
                LOG.debug("a delayed query was lost: %s", error)
