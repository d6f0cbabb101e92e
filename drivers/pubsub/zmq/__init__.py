"""The ZeroMQ driver: XPUB/SUB for frames, ROUTER/DEALER for queries, over tcp or a socket file.

Bind-based: a publisher owns its address, ``tcp://publisher_bind_address:publisher_port`` or, under
``publisher_transport = ipc``, a socket file that only the user may open.  A subscriber has one link per address.

* Filters are exact for topics without wildcards; a wildcard is widened to the prefix before it, and the core filters.
* `Connected` and `Subscribed` are reported after the publisher has confirmed the subscriptions (`wire`).
* A subscriber that falls ``send_hwm`` + 1000 frames behind loses frames; the layer above detects it.
* CURVE encrypts and authenticates tcp links (`access.curve`).
* A message of a plain ZeroMQ publisher, topic and payload in two parts, is handed over as foreign.  A filter without
  wildcards selects it only if its topic ends with a NUL byte.

URLs: ``zmq://host:port``, ``zmq:///path/of/socket``; ``?option=value`` sets an option of the ``[zmq]`` group.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.pubsub.zmq import endpoints, options
from heliograph_drivers.pubsub.zmq.access.curve import Curve
from heliograph_drivers.pubsub.zmq.options import GROUP, OPTIONS
from heliograph_drivers.pubsub.zmq.publisher import ZmqPublisher
from heliograph_drivers.pubsub.zmq.subscriber import ZmqSubscriber
from pubsub_api import config
from pubsub_api.driver import Capabilities, PubSubApi

__all__ = ["ZmqMultiprocPubSub", "ZmqPubSub", "ZmqPublisher", "ZmqSubscriber", "list_opts"]

_FRAME_BYTES_MAX = 2**31 - 1


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]


class ZmqPubSub(PubSubApi):
    """The driver.  See the module's description."""

    options: ClassVar[dict[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        options.check(conf)
        self._curve = Curve(conf)

    @classmethod
    def configure_from_url(cls, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        options.configure_from_url(conf, url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            bind_based=True,
            queries=True,
            native_wildcards=False,
            frame_bytes_max=_FRAME_BYTES_MAX,
            fork_safe=True,
            reports=frozenset({"connect", "disconnect", "subscribed"}),
            security=frozenset({"curve", "unix-permissions"}),
        )

    def listen_addresses(self) -> list[str]:
        path = self._socket_path()
        if path is not None:
            return [endpoints.ipc_address(path)]
        options = self.conf[config.GROUP]
        if not options.publisher_port:
            return []  # the system chooses the ports, so the program must give the addresses
        return [endpoints.tcp_address(host, options.publisher_port) for host in options.publishers_ips]

    def get_publisher(self) -> ZmqPublisher:
        self._curve.check_publisher()
        return ZmqPublisher(self.conf, self._curve, self._socket_path())

    def get_subscriber(self) -> ZmqSubscriber:
        self._curve.check_subscriber()
        return ZmqSubscriber(self.conf, self._curve)

    def _socket_path(self) -> pathlib.Path | None:
        """The publisher's socket file, None under tcp."""
        is_ipc = self.conf[config.GROUP].publisher_transport == "ipc"
        return options.socket_path(self.conf) if is_ipc else None


class ZmqMultiprocPubSub(ZmqPubSub):
    """The same driver on the socket file between the workers of a host and its publisher service, and there only."""

    def _socket_path(self) -> pathlib.Path | None:
        return config.multiproc_socket(self.conf)
