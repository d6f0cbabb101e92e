"""The receiving end of the ZeroMQ driver: passes calls of other threads on to `links.SubscriberLinks`."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.access.descriptors import LINK_DESCRIPTORS, check_room
from heliograph_drivers.pubsub.zmq.endpoints import check_address
from heliograph_drivers.pubsub.zmq.links import SubscriberLinks
from heliograph_drivers.pubsub.zmq.loop import SHARED_LOOP, ReceiveLoop
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, Tally
from pubsub_api.errors import TransportUnavailable


class ZmqSubscriber(DriverSubscriber):
    """See `SubscriberApi`.  Passes registrations on to its links, which exist from ``daemonize`` on."""

    def __init__(self, conf: cfg.ConfigOpts, curve: Curve) -> None:
        super().__init__(
            Tally("link_failures", "barriers_repeated", "queries_dropped", "foreign_dropped", "not_frames")
        )
        self._conf = conf
        self._curve = curve
        self._links: SubscriberLinks | None = None
        self._loop: ReceiveLoop | None = None
        """None before ``daemonize`` and after ``close``."""

    def query(self, frame: bytes) -> int | None:
        self._check_usable()
        links = self._links
        if links is None:
            raise TransportUnavailable("the subscriber is not running yet")
        responders = links.responders
        if not responders:
            links.post(links.look_for_responders)
            raise TransportUnavailable("none of the publishers this subscriber is connected to answers queries")
        links.post(links.ask, frame)
        return responders

    def _check_address(self, address: str) -> None:
        check_address(address)

    def _open(self, receiver: GuardedReceiver) -> None:
        """Raises LimitReached when there is no room for a single link.  Links are made later; one for which there is no
        room is reported as down."""
        check_room(LINK_DESCRIPTORS, "a subscriber")
        self._loop = SHARED_LOOP.enter()
        self._links = SubscriberLinks(self._loop, self._conf, self._curve, receiver, self._tally)

    def _is_alive(self) -> bool:
        return self._links is not None and self._links.is_alive

    def _add_filter(self, topic_filter: str) -> None:
        self._tell(SubscriberLinks.add_filter, topic_filter)

    def _remove_filter(self, topic_filter: str) -> None:
        self._tell(SubscriberLinks.remove_filter, topic_filter)

    def _add_link(self, address: str) -> None:
        self._tell(SubscriberLinks.add_link, address)

    def _remove_link(self, address: str) -> None:
        self._tell(SubscriberLinks.remove_link, address)

    def _tell(self, command: Callable[[SubscriberLinks, str], None], name: str) -> None:
        assert self._links is not None
        self._links.post(command, self._links, name)

    def _close(self) -> None:
        if self._links is None:
            return
        self._links.close()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            SHARED_LOOP.leave(loop)
