"""The ``[zmq]`` option group, and how a ``zmq://`` URL becomes options.  Opens nothing."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qsl

from oslo_config import cfg, types

from pubsub_api import config
from pubsub_api.errors import InvalidConfig

GROUP = "zmq"
_MIB = 1024 * 1024
WILDCARD_HOSTS = frozenset({"*", "0.0.0.0", "::"})


def _seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


def _frames(name: str, default: int, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Integer(min=1, max=1_000_000), default=default, help=f"{help_text} Frames.")


def _bytes(name: str, default: int, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Integer(min=65_536, max=2**40), default=default, help=f"{help_text} Bytes.")


def _file(name: str, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.String(), default="", help=f"{help_text} Empty: none.")


OPTIONS: Sequence[cfg.Opt] = (
    cfg.Opt("ipc_path", type=types.String(), default="",
            help="Socket file of the publisher when [pubsub] publisher_transport is ipc. Empty: the file that [pubsub] "
            "publisher_multiproc_socket names."),
    cfg.Opt("query_port", type=types.Port(), default=0,
            help="Port on which a publisher answers cache queries. 0 lets the system choose; subscribers are told."),
    _frames("send_hwm", 1000, "Frames that wait at the publisher for one slow subscriber. Further ones wait send_wait "
            "and are then dropped for that subscriber; the loss is detected and repaired above the driver."),
    _seconds("send_wait", 0.1, 0.0, 60.0, "How long the publisher waits for a subscriber that is send_hwm frames "
             "behind, once in send_wait_interval at most. 0: not at all."),
    _seconds("send_wait_interval", 1.0, 0.01, 3600.0, "After a subscriber was waited for in vain, none is for this "
             "time: one that stands still costs the others send_wait once in it."),
    _frames("receive_hwm", 1000, "Frames that wait at the subscriber, per publisher, until they are read."),
    _bytes("peer_bytes_max", 4 * _MIB, "What one connection may cost a publisher: subscriptions, questions that it has "
           "not read yet, answers that the other end has not taken. One that costs more is cut."),
    _bytes("peers_bytes_max", 64 * _MIB, "The same for all connections of a publisher together. Raise it where very "
           "many subscribers have very many filters."),
    cfg.Opt("linger_ms", type=types.Integer(min=0, max=60_000), default=1000,
            help="How long close() waits for frames that have not left yet. Milliseconds."),
    _seconds("barrier_timeout", 2.0, 0.05, 60.0, "A publisher that has not confirmed the subscriptions of a link "
             "within this time is asked again."),
    _seconds("connect_timeout", 5.0, 0.1, 300.0, "One attempt to connect, handshake included, is given up after this."),
    _seconds("reconnect_interval", 0.1, 0.01, 60.0, "First wait before a lost link is opened again; it doubles."),
    _seconds("reconnect_interval_max", 2.0, 0.01, 600.0, "Longest wait before a lost link is opened again."),
    _seconds("heartbeat_interval", 5.0, 0.05, 3600.0, "An idle link is tested this often."),
    _seconds("heartbeat_timeout", 30.0, 0.05, 3600.0, "A link on which nothing answers for this long is lost."),
    _file("curve_server_secret_key_file", "CURVE certificate with the secret key of publishers. Set it where "
          "publishers run: they then refuse links that are not encrypted for this key."),
    _file("curve_server_public_key_file", "CURVE certificate with the public key of publishers. Set it where "
          "subscribers run."),
    _file("curve_secret_key_file", "CURVE certificate with the secret key of this subscriber."),
    _file("curve_public_key_file", "CURVE certificate with the public key of this subscriber, if it is to be checked "
          "against the secret one."),
    _file("curve_allowed_keys_dir", "Directory of CURVE certificates (*.key) of the subscribers that publishers let "
          "in; read again when it changes. Without it, whoever knows the publishers' public key gets in."),
)  # fmt: skip


def check(conf: cfg.ConfigOpts) -> None:
    """Read every option of the group and refuse contradictions.  Raises InvalidConfig."""
    config.check_group(conf, GROUP, OPTIONS)
    options = conf[GROUP]
    if options.reconnect_interval_max < options.reconnect_interval:
        raise InvalidConfig("[zmq] reconnect_interval_max is shorter than reconnect_interval")
    if options.peers_bytes_max < options.peer_bytes_max:
        raise InvalidConfig("[zmq] peers_bytes_max, for all connections, is smaller than peer_bytes_max, for one")
    if options.heartbeat_timeout < options.heartbeat_interval:
        raise InvalidConfig("[zmq] heartbeat_timeout is shorter than heartbeat_interval: every idle link would be lost")


def socket_path(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Where the publisher's socket file is under the ipc transport.  Raises InvalidConfig."""
    configured = conf[GROUP].ipc_path
    return pathlib.Path(configured) if configured else config.multiproc_socket(conf)


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """``zmq://host[:port]`` or ``zmq:///path/of/socket``, with ``?option=value`` for options of the group.

    A host that stands for every interface is bound to; it is nothing a subscriber can listen to, so ``publishers_ips``
    keeps its value then.  Raises InvalidConfig.
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
    _configure_options(conf, url)


def _configure_tcp(conf: cfg.ConfigOpts, host: str, port: int | None) -> None:
    conf.set_override("publisher_transport", "tcp", group=config.GROUP)
    conf.set_override("publisher_bind_address", host, group=config.GROUP)
    if host not in WILDCARD_HOSTS:
        conf.set_override("publishers_ips", [host], group=config.GROUP)
    if port is not None:
        conf.set_override("publisher_port", port, group=config.GROUP)


def _configure_options(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    known = {option.name for option in OPTIONS}
    seen: set[str] = set()
    try:
        given = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError as error:
        raise InvalidConfig(f"{url.geturl()}: after the ? come option=value pairs") from error
    for name, value in given:
        if name not in known or name in seen:
            what = "is given twice" if name in seen else f"is no option of [zmq]: {', '.join(sorted(known))}"
            raise InvalidConfig(f"{url.geturl()}: {name!r} {what}")
        seen.add(name)
        try:
            conf.set_override(name, value, group=GROUP)
        except ValueError as error:
            raise InvalidConfig(f"{url.geturl()}: {name}: {error}") from error
