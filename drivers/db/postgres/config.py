"""What the options of ``[db]`` and the URL say, checked once.

Imports nothing foreign, so that options can be listed where the library is not installed.
"""

from __future__ import annotations

import dataclasses
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.handles import read_limits
from heliograph_drivers.postgres_common.settings import PostgresSettings, parse_address
from nb_api import config

_DEFAULT_SCHEMA = "heliograph"


@dataclasses.dataclass(frozen=True)
class PostgresDbSettings(PostgresSettings):
    """Everything the driver needs to know."""

    snapshot_portion: int

    @property
    def channel(self) -> str:
        """Where commits are announced.  PostgreSQL keeps the channels of its databases apart; this, the schemas."""
        return f"heliograph_{self.schema}"


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> PostgresDbSettings:
    """Translate the groups and the URL, whose query is libpq's except for ``schema``.  Raises InvalidConfig."""
    common = conf[config.GROUP]
    return PostgresDbSettings(
        *parse_address(url, default_schema=_DEFAULT_SCHEMA),
        connect_timeout_s=config.connect_timeout(conf),
        operation_timeout_s=common.operation_timeout,
        idle_timeout_s=config.SNAPSHOT_IDLE_TIMEOUT_S,
        snapshot_portion=config.SNAPSHOT_PORTION,
        limits=read_limits(conf),
    )
