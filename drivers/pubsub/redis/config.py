"""The ``[redis]`` option group, and the checked settings that the driver reads from it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.redis_common import RedisAddress, parse_server
from pubsub_api import config
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.options import advanced, flag, override_from_query, text

GROUP = "redis"

_BIND_OPTIONS = ("publisher_port", "publishers_ips", "publisher_bind_address", "publisher_transport")
"""Options of ``[pubsub]`` for bind-based drivers."""

OPTIONS: Sequence[cfg.Opt] = (
    text("url", "redis://127.0.0.1:6379/0",
         "Server: redis://[user:password@]host:port/db, or rediss:// for TLS. The db selects nothing: channels belong "
         "to the whole server, and buses are kept apart by channel_prefix.", secret=True),
    *advanced(
        text("channel_prefix", "heliograph:",
             "Put before every topic to make the name of its channel. Both ends must use the same."),
        flag("note_arrivals", False,
             "A publisher that connects writes a note to the server, and a subscriber whose connection was lost needs "
             "no resync when no publisher has connected meanwhile. All publishers with the same prefix must set it. It "
             "needs the commands SET, GET and INFO, and the key {prefix}$arrivals."),
    ),
)  # fmt: skip

ANSWERS_PER_TIMEOUT = 6
"""The server may take this fraction of ``link_timeout`` to accept or to answer a command.  After that the link counts
as lost: unlike a subscriber, which may pause, a server answers at once."""
HEALTH_INTERVAL_S = 5.0
"""After this long without a message of the server, the driver sends a PING."""
UNANSWERED_MAX = 1024
"""Frames that a publisher sends ahead of the server's answers: enough for a link of 10 ms.  Further frames wait for an
answer."""
QUERIES_MAX = 256
"""Queries of a subscriber that wait to be sent.  Further ones are refused, because the core asks again anyway."""


@dataclasses.dataclass(frozen=True)
class RedisSettings:
    """The settings of a connection."""

    server: RedisAddress
    channel_prefix: bytes
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    connect_timeout_s: float
    operation_timeout_s: float
    health_interval_s: float
    retry_interval_s: float
    retry_interval_max_s: float
    answer_scopes: tuple[str, ...]
    note_arrivals: bool

    @property
    def address(self) -> str:
        return self.server.address

    def at(self, address: str) -> RedisSettings:
        """The same settings for another server; the credentials stay.  Raises InvalidConfig on a bad address."""
        server = parse_server(address)
        if server.username is not None or server.password is not None:
            raise InvalidConfig(f"address {server.address!r} carries credentials; put them into [redis] url")
        own = self.server
        return dataclasses.replace(
            self, server=dataclasses.replace(server, username=own.username, password=own.password)
        )


def read_settings(conf: cfg.ConfigOpts) -> RedisSettings:
    """The settings from the configuration.  Raises InvalidConfig when options contradict each other."""
    group, common = conf[GROUP], conf[config.GROUP]
    server = parse_server(group.url)
    _check_tls(common, server)
    return RedisSettings(
        server=server,
        channel_prefix=group.channel_prefix.encode(),
        ca_file=common.tls_ca_file,
        cert_file=common.tls_cert_file,
        key_file=common.tls_key_file,
        connect_timeout_s=common.connect_timeout,
        operation_timeout_s=common.link_timeout / ANSWERS_PER_TIMEOUT,
        health_interval_s=HEALTH_INTERVAL_S,
        retry_interval_s=config.retry_interval(conf),
        retry_interval_max_s=common.retry_interval_max,
        answer_scopes=config.answer_scopes(conf),
        note_arrivals=group.note_arrivals,
    )


def ignored_options(conf: cfg.ConfigOpts) -> list[str]:
    """Names of the options of ``[pubsub]`` that are set and that this driver ignores."""
    defaults = (cfg.Locations.opt_default, cfg.Locations.set_default)
    found = ((name, conf.get_location(name, "pubsub")) for name in _BIND_OPTIONS)
    return [name for name, where in found if where is not None and where.location not in defaults]


def _check_tls(common: cfg.ConfigOpts.GroupAttr, server: RedisAddress) -> None:
    if common.tls_client_auth:
        raise InvalidConfig("[pubsub] tls_client_auth is not for redis: its server decides which clients it accepts")
    files = {name: getattr(common, name) for name in ("tls_ca_file", "tls_cert_file", "tls_key_file")}
    for name, path in files.items():
        if path is not None and not server.has_tls:
            raise InvalidConfig(f"[pubsub] {name} is set, but the connection is not encrypted; use rediss://")
        if path is not None and not pathlib.Path(path).is_file():
            raise InvalidConfig(f"[pubsub] {name}: there is no file {path!r}")
    if (files["tls_cert_file"] is None) != (files["tls_key_file"] is None):
        raise InvalidConfig("[pubsub] tls_cert_file and tls_key_file go together; one of them is not set")


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """Set overrides from ``redis://[user:password@]host:port/db?option=value``.  Raises InvalidConfig."""
    plain = url._replace(query="").geturl()
    parse_server(plain)
    conf.set_override("url", plain, group=GROUP)
    known = [option for option in OPTIONS if option.name != "url"]
    override_from_query(conf, url, {GROUP: known, config.GROUP: config.URL_OPTIONS})
