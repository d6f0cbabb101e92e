"""What the options of ``[db]`` and the URL say, checked once."""

from __future__ import annotations

import dataclasses
import re
from urllib.parse import SplitResult

from oslo_config import cfg

from drivers.db.handles import HandleLimits, read_limits
from nb_api import config
from pubsub_api.errors import InvalidConfig

_DEFAULT_PORT = 2379
_DEFAULT_PREFIX = "heliograph"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclasses.dataclass(frozen=True)
class EtcdSettings:
    """Everything the driver needs to know."""

    host: str
    port: int
    prefix: bytes
    connect_timeout_s: float
    operation_timeout_s: float
    snapshot_portion: int
    limits: HandleLimits

    @property
    def address(self) -> str:
        return f"etcd://{self.host}:{self.port}/{self.prefix.decode()}"


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> EtcdSettings:
    """Translate the groups and the URL, ``etcd://host:port/prefix``.  Raises InvalidConfig."""
    common = conf[config.GROUP]
    if url.username is not None or url.query or url.fragment:
        raise InvalidConfig("the URL of an etcd is etcd://host:port/prefix, without credentials and without options")
    prefix = url.path.strip("/") or _DEFAULT_PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise InvalidConfig(f"{prefix!r} cannot begin keys: it is 1 to 100 letters, digits, dots, dashes, underscores")
    return EtcdSettings(
        host=url.hostname or "127.0.0.1",
        port=url.port or _DEFAULT_PORT,
        prefix=prefix.encode(),
        connect_timeout_s=common.connect_timeout,
        operation_timeout_s=common.operation_timeout,
        snapshot_portion=common.snapshot_portion,
        limits=read_limits(conf),
    )
