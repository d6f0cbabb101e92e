"""The ``[zmq]`` option group, and how a ``zmq://`` URL becomes options."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg

from pubsub_api import config
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.options import MIB, advanced, count, override_from_query, size, text

GROUP = "zmq"
WILDCARD_HOSTS = frozenset({"*", "0.0.0.0", "::"})


def _file(name: str, help_text: str) -> cfg.Opt:
    return text(name, "", f"{help_text} Empty: none.")


OPTIONS: Sequence[cfg.Opt] = (
    _file("curve_server_secret_key_file", "CURVE certificate with the secret key of publishers. Set it on publishers: "
          "they then refuse links that are not encrypted for this key."),
    _file("curve_server_public_key_file", "CURVE certificate with the public key of publishers. Set it on "
          "subscribers."),
    _file("curve_secret_key_file", "CURVE certificate with the secret key of this subscriber."),
    _file("curve_allowed_keys_dir", "Directory of CURVE certificates (*.key) of the subscribers that publishers "
          "accept; read again when it changes. Without it, a publisher accepts every subscriber that knows its public "
          "key."),
    *advanced(
        count("send_hwm", 1000, 1, 1_000_000, "Frames that wait at the publisher for one slow subscriber. Further ones "
              "wait [pubsub] send_wait and are then dropped for that subscriber; the loss is detected and repaired "
              "above the driver."),
        text("ipc_path", "", "Socket file of the publisher when [pubsub] publisher_transport is ipc. Empty: the file "
             "that [pubsub] publisher_multiproc_socket names."),
        cfg.PortOpt("query_port", default=0, help="Port on which a publisher answers cache queries. 0 lets the system "
                    "choose; subscribers learn the port."),
        size("peers_bytes_max", 64 * MIB, "Memory of a publisher for all its connections: subscriptions, questions "
             "that it has not read yet, answers that the other end has not taken. A connection that costs more than a "
             "sixteenth of this is cut. Raise it for very many subscribers with very many filters.", low=262_144),
    ),
)  # fmt: skip

PEERS_PER_BOUND = 16
"""One connection may use this fraction of ``peers_bytes_max``; with a larger one, a few could shut out all others."""
SEND_WAIT_INTERVAL_S = 1.0
"""After a wait for a slow subscriber has timed out, the publisher does not wait for any subscriber during this time, so
that one that stands still costs the others a tenth of the time."""
BARRIER_TIMEOUT_S = 2.0
"""A publisher that has not confirmed the subscriptions of a link within this time is asked again."""
RECEIVE_HWM = 1000
"""Frames that wait at the subscriber, per publisher, until they are read; ZeroMQ's own default."""
LINGER_S = 1.0
"""How long close() waits for frames that are not sent yet."""


def peer_bytes_max(options: cfg.ConfigOpts.GroupAttr) -> int:
    """How many bytes one connection may cost a publisher."""
    return int(options.peers_bytes_max) // PEERS_PER_BOUND


def check(conf: cfg.ConfigOpts) -> None:
    """Read every option of the group.  Raises InvalidConfig."""
    config.check_group(conf, GROUP, OPTIONS)


def socket_path(conf: cfg.ConfigOpts) -> pathlib.Path:
    """The path of the publisher's socket file with the ipc transport.  Raises InvalidConfig."""
    configured = conf[GROUP].ipc_path
    return pathlib.Path(configured) if configured else config.multiproc_socket(conf)


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """Set overrides from ``zmq://host[:port]`` or ``zmq:///path/of/socket``, with ``?option=value``.

    A host that means every interface is only bound: subscribers cannot connect to it, so ``publishers_ips`` keeps its
    value.  Raises InvalidConfig.
    """
    try:
        host, port = url.hostname, url.port
    except ValueError as error:
        raise InvalidConfig(f"{url.geturl()}: {error}") from error
    if url.username is not None or url.fragment or bool(host) == bool(url.path.strip("/")):
        raise InvalidConfig(f"{url.geturl()}: a ZeroMQ URL is zmq://host:port or zmq:///path/of/socket")
    if host:
        _configure_tcp(conf, host, port)
    else:
        conf.set_override("publisher_transport", "ipc", group=config.GROUP)
        conf.set_override("ipc_path", url.path, group=GROUP)
    override_from_query(conf, url, {GROUP: OPTIONS, config.GROUP: config.URL_OPTIONS})


def _configure_tcp(conf: cfg.ConfigOpts, host: str, port: int | None) -> None:
    conf.set_override("publisher_transport", "tcp", group=config.GROUP)
    conf.set_override("publisher_bind_address", host, group=config.GROUP)
    if host not in WILDCARD_HOSTS:
        conf.set_override("publishers_ips", [host], group=config.GROUP)
    if port is not None:
        conf.set_override("publisher_port", port, group=config.GROUP)
