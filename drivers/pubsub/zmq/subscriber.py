"""The receiving end of the ZeroMQ driver, as other threads see it.  The work is done by `loop.ReceiveLoop`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from oslo_config import cfg

from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.endpoints import check_address
from heliograph_drivers.pubsub.zmq.loop import ReceiveLoop
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, Tally
from pubsub_api.errors import TransportUnavailable


class ZmqSubscriber(DriverSubscriber):
    """See `SubscriberApi`.  Tells the loop, which exists from ``daemonize`` on, what was registered."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve) -> None:
        super().__init__(
            Tally("link_failures", "barriers_repeated", "queries_dropped", "foreign_dropped", "not_frames")
        )
        self._conf = conf
        self._curve = curve
        self._loop: ReceiveLoop | None = None

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

    def _check_address(self, address: str) -> None:
        check_address(address)

    def _open(self, receiver: GuardedReceiver) -> None:
        loop = ReceiveLoop(self._conf, self._curve, receiver, self._tally)
        loop.start()
        self._loop = loop

    def _is_alive(self) -> bool:
        return self._loop is not None and self._loop.is_alive

    def _add_filter(self, topic_filter: str) -> None:
        self._tell(ReceiveLoop.add_filter, topic_filter)

    def _remove_filter(self, topic_filter: str) -> None:
        self._tell(ReceiveLoop.remove_filter, topic_filter)

    def _add_link(self, address: str) -> None:
        self._tell(ReceiveLoop.add_link, address)

    def _remove_link(self, address: str) -> None:
        self._tell(ReceiveLoop.remove_link, address)

    def _tell(self, command: Callable[[ReceiveLoop, str], None], name: str) -> None:
        assert self._loop is not None
        self._loop.post(functools.partial(command, self._loop, name))

    def _close(self) -> None:
        if self._loop is not None:
            self._loop.stop()
            self._loop.join()
