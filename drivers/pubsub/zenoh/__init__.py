"""Driver ``zenoh``: frames as samples of Eclipse Zenoh (https://zenoh.io), between peers or through a router.

================ ===================================================================================================
configuration    ``[zenoh]``, see `heliograph_drivers.pubsub.zenoh.config`; as a URL ``zenoh://host:port?mode=client``
address          ``tcp/host:port``, also ``tls``, ``quic``, ``ws``, ``udp``, and ``unixsock-stream/path``
topic ``a/b``    key ``heliograph/a/b``; the payload is the frame and nothing else
``$control``     key ``heliograph@control``
query            a Zenoh query for the key of its scope, ``heliograph@ask/a/**`` for ``a/#``, ``heliograph@ask`` for no
                 restriction, with the QUERY frame as its payload; a query for ``heliograph@sync`` asks for any answer
access control   docs/security.md has the rules; subscribers declare ``$*heliograph/...``
================ ===================================================================================================

Scouting is off, and the driver listens on configured addresses only.  It does not survive a ``fork()``: see
`heliograph_drivers.pubsub.zenoh.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.zenoh import config
from heliograph_drivers.pubsub.zenoh.config import GROUP, OPTIONS
from heliograph_drivers.pubsub.zenoh.publisher import ZenohPublisher
from heliograph_drivers.pubsub.zenoh.subscriber import ZenohSubscriber
from pubsub_api.driver import Capabilities, PubSubApi

FRAME_BYTES_MAX = 2**30 - 2**16
"""Zenoh takes messages up to 1 GiB, its own header included."""


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


class ZenohPubSub(PubSubApi):
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
            bind_based=self._settings.is_bind_based,
            relays=self._settings.mode == "router",
            queries=True,
            native_wildcards=True,
            frame_bytes_max=FRAME_BYTES_MAX,
            fork_safe=False,
            reports=frozenset({"connect", "disconnect", "subscribed"}),
            security=frozenset({"tls", "mtls", "password", "acl"}),
            asks_by_scope=True,
        )

    def listen_addresses(self) -> list[str]:
        return list(self._settings.endpoints)

    def get_publisher(self) -> ZenohPublisher:
        return ZenohPublisher(self._settings)

    def get_subscriber(self) -> ZenohSubscriber:
        return ZenohSubscriber(self._settings)
