"""The ``[redis]`` option group and what the rest of the driver reads of it, checked once.

Imports nothing foreign, so that options can be listed where the library is not installed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import urllib.parse
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg, types

from drivers.redis_common import Server, parse_server
from pubsub_api.core.scopes import check_scope
from pubsub_api.errors import InvalidConfig, InvalidTopic

GROUP = "redis"
"""Scheme of an address -> whether the link is encrypted."""

_NOT_OURS = ("publisher_port", "publishers_ips", "publisher_bind_address", "publisher_transport")
"""Options of ``[pubsub]`` for drivers whose publishers own an address."""


def _seconds(name: str, default: float, low: float, high: float, help_text: str) -> cfg.Opt:
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.")


OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("url", default="redis://127.0.0.1:6379/0", secret=True,
               help="Server: redis://[user:password@]host:port/db, or rediss:// for TLS. The db selects nothing: "
                    "channels belong to the whole server, and buses are kept apart by channel_prefix."),
    cfg.StrOpt("username", secret=True, help="ACL user. Unset: the one in url, else the server's default user."),
    cfg.StrOpt("password", secret=True, help="Password of the user. Unset: the one in url, else none."),
    cfg.StrOpt("channel_prefix", default="heliograph:",
               help="Put before every topic to make the name of its channel. Both ends must use the same."),
    cfg.BoolOpt("ssl", default=False, help="Encrypt the connection, as the scheme rediss:// does."),
    cfg.StrOpt("ssl_ca_file",
               help="PEM file of the authorities that may sign the server's certificate. Unset: the system's."),
    cfg.StrOpt("ssl_cert_file", help="PEM file of our own certificate, for a server that asks for one."),
    cfg.StrOpt("ssl_key_file", help="PEM file of the private key of ssl_cert_file."),
    cfg.BoolOpt("ssl_check_hostname", default=True, help="The server's certificate must name the host of url."),
    _seconds("connect_timeout", 2.0, 0.05, 300.0, "How long each step of a connection attempt may take."),
    _seconds("send_timeout", 5.0, 0.05, 300.0,
             "How long the server may take to accept or to answer a command. Then the link counts as lost."),
    _seconds("health_interval", 5.0, 0.05, 3600.0, "A link that was silent this long is asked for a sign of life."),
    _seconds("reconnect_min", 0.1, 0.01, 60.0, "First wait before a lost link is tried again; later waits double."),
    _seconds("reconnect_max", 5.0, 0.01, 3600.0, "Longest wait before a lost link is tried again."),
    cfg.IntOpt("unanswered_max", default=1024, min=1, max=1_000_000,
               help="Frames a publisher sends ahead of the server's answers. More wait, send_timeout at most."),
    cfg.ListOpt("answer_scopes", default=["#"],
                help="Topics about which a publisher or cache hears questions: tenant-7/# or tenant-7/port, # for all. "
                     "Set it where the ACL of the user lets it use the channels of these only."),
    cfg.BoolOpt("note_arrivals", default=False,
                help="A publisher that connects notes that in the server, and a subscriber whose connection was lost "
                     "needs no resync when nobody has come meanwhile. All that publish under the prefix must have it "
                     "set. It needs SET, GET and INFO, and the key {prefix}$arrivals."),
    cfg.IntOpt("queries_max", default=256, min=1, max=100_000,
               help="Queries of a subscriber that wait for their connection. More are refused."),
)  # fmt: skip

_URL_OPTIONS = {option.name for option in OPTIONS} - {"url", "username", "password"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything one connection needs to know."""

    server: Server
    channel_prefix: bytes
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    check_hostname: bool
    connect_timeout_s: float
    send_timeout_s: float
    health_interval_s: float
    reconnect_min_s: float
    reconnect_max_s: float
    unanswered_max: int
    queries_max: int
    answer_scopes: tuple[str, ...]
    note_arrivals: bool

    @property
    def address(self) -> str:
        return self.server.address

    def at(self, address: str) -> Settings:
        """The same settings for another server; the credentials stay.  Raises InvalidConfig on a bad address."""
        server = parse_server(address)
        if server.username is not None or server.password is not None:
            raise InvalidConfig(
                f"address {server.address!r} carries credentials; put them into [redis] username and password"
            )
        own = self.server
        return dataclasses.replace(
            self, server=dataclasses.replace(server, username=own.username, password=own.password)
        )


def read_settings(conf: cfg.ConfigOpts) -> Settings:
    """Translate the group.  Raises InvalidConfig when options contradict each other."""
    group = conf[GROUP]
    server = parse_server(group.url)
    for name in ("username", "password"):
        if getattr(group, name) is not None and getattr(server, name) is not None:
            raise InvalidConfig(f"[redis] {name} is set and url has one too; remove one of them")
    server = dataclasses.replace(
        server,
        has_tls=server.has_tls or group.ssl,
        username=server.username if group.username is None else group.username,
        password=server.password if group.password is None else group.password,
    )
    _check_tls(group, server)
    if group.reconnect_min > group.reconnect_max:
        raise InvalidConfig(
            f"[redis] reconnect_min = {group.reconnect_min} s is longer than reconnect_max = {group.reconnect_max} s"
        )
    return Settings(
        server=server,
        channel_prefix=group.channel_prefix.encode(),
        ca_file=group.ssl_ca_file,
        cert_file=group.ssl_cert_file,
        key_file=group.ssl_key_file,
        check_hostname=group.ssl_check_hostname,
        connect_timeout_s=group.connect_timeout,
        send_timeout_s=group.send_timeout,
        health_interval_s=group.health_interval,
        reconnect_min_s=group.reconnect_min,
        reconnect_max_s=group.reconnect_max,
        unanswered_max=group.unanswered_max,
        queries_max=group.queries_max,
        answer_scopes=_check_scopes(group.answer_scopes),
        note_arrivals=group.note_arrivals,
    )


def ignored_options(conf: cfg.ConfigOpts) -> list[str]:
    """Names of the options of ``[pubsub]`` that somebody has set and that mean nothing here."""
    defaults = (cfg.Locations.opt_default, cfg.Locations.set_default)
    found = ((name, conf.get_location(name, "pubsub")) for name in _NOT_OURS)
    return [name for name, where in found if where is not None and where.location not in defaults]


def _check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(check_scope(scope) for scope in scopes)
    except InvalidTopic as error:
        raise InvalidConfig(f"[redis] answer_scopes: {error}") from error


def _check_tls(group: cfg.ConfigOpts.GroupAttr, server: Server) -> None:
    files = {name: getattr(group, name) for name in ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")}
    for name, path in files.items():
        if path is not None and not server.has_tls:
            raise InvalidConfig(f"[redis] {name} is set, but the connection is not encrypted; set ssl or use rediss://")
        if path is not None and not pathlib.Path(path).is_file():
            raise InvalidConfig(f"[redis] {name}: there is no file {path!r}")
    if (files["ssl_cert_file"] is None) != (files["ssl_key_file"] is None):
        raise InvalidConfig("[redis] ssl_cert_file and ssl_key_file go together; one of them is not set")


def configure_from_url(conf: cfg.ConfigOpts, url: SplitResult) -> None:
    """Set overrides from ``redis://[user:password@]host:port/db?option=value``.  Raises InvalidConfig."""
    plain = url._replace(query="").geturl()
    parse_server(plain)
    conf.set_override("url", plain, group=GROUP)
    try:
        given = urllib.parse.parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError as error:
        raise InvalidConfig(f"the query of a redis URL must be option=value pairs, not {url.query!r}") from error
    seen: set[str] = set()
    for name, value in given:
        if name not in _URL_OPTIONS or name in seen:
            problem = "is given twice" if name in seen else "is not an option there"
            raise InvalidConfig(f"redis URL: {name!r} {problem}; options are {', '.join(sorted(_URL_OPTIONS))}")
        seen.add(name)
        try:
            conf.set_override(name, value, group=GROUP)
        except ValueError as error:
            raise InvalidConfig(f"redis URL: {name}={value}: {error}") from error
