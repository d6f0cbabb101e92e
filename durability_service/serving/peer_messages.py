"""The bus between services: messages as CONTROL frames on the domain's topics, best effort, over any driver.

The sending end also serves queries of clients: on a bind-based driver it is this service's one address.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from durability_service.config import Topics
from durability_service.core import messages
from durability_service.core.messages import Advert, Message
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import DriverError, FrameError, LimitReached, NotSupported
from pubsub_api.core.frame import Kind
from pubsub_api.core.settings import FrameSettings
from pubsub_api.driver import LinkReport, PubSubApi

LOG = logging.getLogger(__name__)


class PeerBus:
    """``on_message`` is called from the driver's thread; ``answer`` too, with a query."""

    def __init__(
        self,
        driver: PubSubApi,
        topics: Topics,
        frame: FrameSettings,
        *,
        guid: bytes,
        addresses: Sequence[str],
        on_message: Callable[[Message], None],
        answer: Callable[[bytes], Iterable[bytes]],
    ) -> None:
        self._topics = topics
        self._frame = frame
        self._on_message = on_message
        self._guid = guid
        self.sent = self.sent_bytes = self.unsent = self.received = self.bad_frames = 0
        self._sending_end = driver.get_publisher()
        self._sending_end.initialize(self.on_link)
        try:
            self._sending_end.serve(answer)
        except NotSupported:
            LOG.warning("Durability: this driver has no queries, so clients cannot ask for history.")
        self._receiving_end = driver.get_subscriber()
        self._receiving_end.initialize(self)
        for topic in topics:
            self._receiving_end.register_topic(topic)
        for address in addresses:
            self._receiving_end.register_listen_address(address)

    def start(self) -> None:
        self._receiving_end.daemonize()

    @property
    def address(self) -> str:
        return self._sending_end.address

    def listen_to(self, address: str) -> bool:
        """Hear a further peer; True when it is new."""
        return self._receiving_end.register_listen_address(address)

    def send(self, message: Message) -> None:
        """To every peer.  From one thread at a time.  What the transport refuses is counted and gone."""
        topic = self._topics.adverts if isinstance(message, Advert) else self._topics.alignment
        frame = frames.pack(
            Kind.CONTROL, self._guid, topic, messages.encode(message), timestamp=time.time_ns(), key=self._frame.key
        )
        if len(frame) > self._frame.bytes_max:
            LOG.error("Durability: peers refuse what they are sent: %d bytes, above frame_bytes_max", len(frame))
        try:
            self._sending_end.send(topic, frame)
        except (DriverError, LimitReached) as error:
            self.unsent += 1
            LOG.debug("Durability: a message to the peers was not sent: %s", error)
        else:
            self.sent += 1
            self.sent_bytes += len(frame)

    # -- what the driver calls

    def on_frames(self, received: Sequence[bytes]) -> None:
        for frame in received:
            try:
                header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
                if header.kind != Kind.CONTROL or header.topic not in self._topics or header.guid == self._guid:
                    continue
                message = messages.decode(frames.body(frame, header))
            except FrameError as error:
                self.bad_frames += 1
                LOG.debug("Durability: refused a frame: %s", error)
                continue
            self.received += 1
            self._on_message(message)

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """What has no envelope is not from a peer."""

    def on_link(self, report: LinkReport) -> None:
        LOG.debug("Durability: %s", report)

    def close(self) -> None:
        """Idempotent."""
        self._receiving_end.close()
        self._sending_end.close()
