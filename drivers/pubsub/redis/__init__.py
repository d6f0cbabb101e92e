"""Driver ``redis``: channels of a Redis server (6 or later), or of one that speaks the same protocol.

Connection string
    ``redis://[user:password@]host:port/db?option=value``, or ``rediss://`` for TLS.
    The database number does not separate buses, ``channel_prefix`` does: channels belong to the whole server.

Features
    connect-based (both ends connect to the server, any number of publishers), queries, over-delivery for wildcards,
    reports of connect, disconnect and subscribed.  Frames are pipelined.

What it is not
    Redis forgets a message as soon as it is sent, disconnects subscribers that read too slowly
    (client-output-buffer-limit), and loses messages when a connection breaks.  The driver repairs none of this.  It
    reports lost links, and the core detects the losses by the numbers of events.

Channels, for the prefix ``heliograph:``
    ``heliograph:{topic}`` carries frames; ``heliograph:$ask:{scope}`` carries queries of a scope, each behind the
    16-byte nonce of its asker; ``heliograph:$reply:{scope}/{nonce in hex}`` carries the replies to that asker.

Access control
    An ACL user needs the commands ``ping publish subscribe psubscribe unsubscribe punsubscribe`` and the channels of
    its topics and of questions about them: docs/security.md has the lines.

Parts
    `config`: options and addresses.  `channels`: names and commands.  `wire`: the socket and the answers.
    `connection`: a connection that listens.  `link`: the thread that listens.  `publisher`, `subscriber`: the two ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.redis import config
from heliograph_drivers.pubsub.redis.publisher import RedisPublisher
from heliograph_drivers.pubsub.redis.subscriber import RedisSubscriber
from heliograph_drivers.pubsub.redis.wire import BULK_BYTES_MAX
from pubsub_api.driver import Capabilities, PubSubApi

LOG = logging.getLogger(__name__)

OPTIONS = config.OPTIONS


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(config.GROUP, OPTIONS)]


class RedisPubSub(PubSubApi):
    """The driver.  See the module's description."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {config.GROUP: OPTIONS}
    uses_tls = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Read the options.  Raises InvalidConfig when they contradict each other."""
        super().__init__(conf)
        self._settings = config.read_settings(conf)
        for name in config.ignored_options(conf):
            LOG.warning(
                "[pubsub] %s is set, and the redis driver ignores it: [redis] url says where the server is", name
            )

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        config.configure_from_url(conf, url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            bind_based=False,
            queries=True,
            native_wildcards=False,
            frame_bytes_max=BULK_BYTES_MAX,
            fork_safe=True,
            reports=frozenset({"connect", "disconnect", "subscribed"}),
            security=frozenset({"tls", "mtls", "password", "acl"}),
            asks_by_scope=True,
        )

    def listen_addresses(self) -> list[str]:
        return [self._settings.address]

    def get_publisher(self) -> RedisPublisher:
        return RedisPublisher(self._settings)

    def get_subscriber(self) -> RedisSubscriber:
        return RedisSubscriber(self._settings)
