"""Driver ``longpoll``: every publisher is its own broker and knows its subscribers, over gRPC.

================ ===================================================================================================
configuration    ``[longpoll]``, see `heliograph_drivers.pubsub.longpoll.config`; as a URL ``longpoll://host:port?option=value``
address          ``longpoll://host:port``: the publisher listens there, subscribers connect
connection       one per subscriber and publisher, for any number of filters; polls, commands and queries share it
filters          exact, at the publisher: it sends only frames that a filter matches
queue            a mailbox per subscriber at the publisher, with a policy per topic (`core.mailbox`)
failure          both sides notice it within configured times; an end wrongly considered dead begins a new session
security         TLS, and certificates of subscribers (``tls``, ``tls_client_auth``)
================ ===================================================================================================

It is for many exact filters over few connections, and for publishers that must learn that a subscriber died.  It is not
for thousands of subscribers of the same topics, because every frame is put into the mailbox of each.  It does not
survive a ``fork()``: see `heliograph_drivers.pubsub.longpoll.process`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.longpoll import config
from heliograph_drivers.pubsub.longpoll.config import GROUP, OPTIONS
from heliograph_drivers.pubsub.longpoll.publisher import FRAME_BYTES_MAX, LongpollPublisher
from heliograph_drivers.pubsub.longpoll.subscriber import LongpollSubscriber
from pubsub_api.driver import Capabilities, PubSubApi


class LongpollPubSub(PubSubApi):
    """The driver.  See the module's description."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}
    uses_tls = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Read and check the options.  Raises InvalidConfig."""
        super().__init__(conf)
        self._settings = config.read_settings(conf)

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        config.configure_from_url(conf, url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            bind_based=True,
            queries=True,
            native_wildcards=True,
            frame_bytes_max=FRAME_BYTES_MAX,
            fork_safe=False,
            reports=frozenset({"connect", "disconnect", "subscribed"}),
            security=frozenset({"tls", "mtls"}),
        )

    def listen_addresses(self) -> list[str]:
        return list(self._settings.listen_addresses)

    def get_publisher(self) -> LongpollPublisher:
        return LongpollPublisher(self._settings)

    def get_subscriber(self) -> LongpollSubscriber:
        return LongpollSubscriber(self._settings)
