"""What ``[db]`` and the URL say of a Redis as database, checked once."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.handles import HandleLimits, read_limits
from heliograph_drivers.redis_common import parse_server
from nb_api import config
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.options import refuse_tls

GROUP = "db_redis"

_DEFAULT_PREFIX = "heliograph"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_FORMS = "redis://[user:password@]host:port/db?prefix=name, rediss:// for TLS, or unix:///path/socket?db=0&prefix=name"

OPTIONS: Sequence[cfg.Opt] = ()
"""None any more.  A file that names one is told where it went."""


@dataclasses.dataclass(frozen=True)
class RedisDbSettings:
    """Everything the driver needs to know."""

    arguments: dict[str, Any] = dataclasses.field(repr=False)
    """Of redis-py's connection: where and as whom.  May hold a password."""
    has_tls: bool
    address: str
    """The URL without credentials: what errors show."""
    prefix: bytes
    connect_timeout_s: float
    operation_timeout_s: float
    snapshot_idle_timeout_s: float
    snapshot_portion: int
    limits: HandleLimits


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> RedisDbSettings:
    """Translate the groups and the URL.  Raises InvalidConfig, which never shows a password."""
    common = conf[config.GROUP]
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    prefix = query.pop("prefix", _DEFAULT_PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise InvalidConfig(f"{prefix!r} cannot begin keys: it is 1 to 100 letters, digits, dots, dashes, underscores")
    arguments, address = _unix(url, query) if url.scheme == "unix" else _tcp(url, query)
    has_tls = url.scheme == "rediss"
    if has_tls:
        arguments |= {
            "ssl_ca_certs": common.tls_ca_file, "ssl_certfile": common.tls_cert_file,
            "ssl_keyfile": common.tls_key_file, "ssl_check_hostname": True,
        }  # fmt: skip
    else:
        refuse_tls(conf, config.GROUP, f"{url.scheme}://")
    return RedisDbSettings(
        arguments=arguments,
        has_tls=has_tls,
        address=f"{address} (prefix {prefix})",
        prefix=prefix.encode(),
        connect_timeout_s=config.connect_timeout(conf),
        operation_timeout_s=common.operation_timeout,
        snapshot_idle_timeout_s=config.SNAPSHOT_IDLE_TIMEOUT_S,
        snapshot_portion=config.SNAPSHOT_PORTION,
        limits=read_limits(conf),
    )


def _tcp(url: SplitResult, query: dict[str, str]) -> tuple[dict[str, Any], str]:
    if query:
        raise InvalidConfig(f"{sorted(query)[0]!r} is no option of the URL of a Redis: write {_FORMS}")
    server = parse_server(url._replace(query="").geturl())
    return server.arguments, server.address


def _unix(url: SplitResult, query: dict[str, str]) -> tuple[dict[str, Any], str]:
    db = query.pop("db", "0")
    path = urllib.parse.unquote(url.path)
    if query or url.netloc or url.fragment or not path.strip("/") or not (db.isascii() and db.isdigit()):
        raise InvalidConfig(f"the URL of a Redis behind a socket cannot be understood: write {_FORMS}")
    return {"path": path, "db": int(db)}, f"unix://{path}?db={db}"
