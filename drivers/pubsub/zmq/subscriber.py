"""The receiving end of the ZeroMQ driver, as other threads see it.  The work is done by `loop.ReceiveLoop`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping

from oslo_config import cfg

from drivers.pubsub.zmq.access.curve import Curve
from drivers.pubsub.zmq.endpoints import check_address
from drivers.pubsub.zmq.loop import ReceiveLoop
from drivers.pubsub.zmq.wire import subscription_prefixes
from pubsub_api.driver import Receiver, SubscriberApi
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.errors import Closed, TransportUnavailable, UsageError
from pubsub_api.runtime.forking import ForkGuard


class ZmqSubscriber(SubscriberApi):
    """See `SubscriberApi`.  Keeps what was registered and tells the loop, which exists from ``daemonize`` on."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve) -> None:
        self._conf = conf
        self._curve = curve
        self._guard = ForkGuard("subscriber")
        self._lock = threading.Lock()
        self._is_closed = False
        self._receiver: GuardedReceiver | None = None
        self._filters: dict[str, None] = {}
        self._addresses: dict[str, None] = {}
        self._tally = Tally("link_failures", "barriers_repeated", "queries_dropped", "foreign_dropped", "not_frames")
        self._loop: ReceiveLoop | None = None

    def initialize(self, receiver: Receiver) -> None:
        self._check_usable()
        self._receiver = GuardedReceiver(receiver)

    def register_topic(self, topic_filter: str) -> bool:
        subscription_prefixes(topic_filter)
        return self._add(self._filters, topic_filter, ReceiveLoop.add_filter)

    def unregister_topic(self, topic_filter: str) -> bool:
        return self._remove(self._filters, topic_filter, ReceiveLoop.remove_filter)

    def register_listen_address(self, address: str) -> bool:
        return self._add(self._addresses, check_address(address), ReceiveLoop.add_link)

    def unregister_listen_address(self, address: str) -> bool:
        return self._remove(self._addresses, address, ReceiveLoop.remove_link)

    def daemonize(self) -> None:
        self._check_usable()
        with self._lock:
            if self._receiver is None or self._loop is not None:
                raise UsageError("daemonize is called once, after initialize")
            loop = ReceiveLoop(self._conf, self._curve, self._receiver, self._tally)
            for topic_filter in self._filters:
                loop.post(functools.partial(loop.add_filter, topic_filter))
            for address in self._addresses:
                loop.post(functools.partial(loop.add_link, address))
            loop.start()
            self._loop = loop

    @property
    def is_running(self) -> bool:
        loop = self._loop
        return loop is not None and not self._is_closed and not self._guard.is_child and loop.is_alive

    @property
    def receiver_errors(self) -> int:
        return self._receiver.errors if self._receiver is not None else 0

    @property
    def counters(self) -> Mapping[str, int]:
        return self._tally.counts()

    def query(self, frame: bytes) -> int | None:
        self._check_usable()
        loop = self._loop
        if loop is None:
            raise TransportUnavailable("the subscriber is not running yet")
        responders = loop.responders
        if not responders:
            loop.post(loop.look_for_responders)
            raise TransportUnavailable("none of the publishers this subscriber is connected to answers queries")
        loop.post(functools.partial(loop.ask, frame))
        return responders

    def close(self) -> None:
        if self._guard.is_child:
            return
        with self._lock:
            self._is_closed = True
            loop = self._loop
        if loop is None:
            return
        loop.stop()
        loop.join()

    def _add(self, registered: dict[str, None], name: str, command: Callable[[ReceiveLoop, str], None]) -> bool:
        self._check_usable()
        with self._lock:
            if name in registered:
                return False
            registered[name] = None
            if self._loop is not None:
                self._loop.post(functools.partial(command, self._loop, name))
            return True

    def _remove(self, registered: dict[str, None], name: str, command: Callable[[ReceiveLoop, str], None]) -> bool:
        self._check_usable()
        with self._lock:
            if name not in registered:
                return False
            del registered[name]
            if self._loop is not None:
                self._loop.post(functools.partial(command, self._loop, name))
            return True

    def _check_usable(self) -> None:
        self._guard.check()
        if self._is_closed:
            raise Closed("the subscriber is closed")
