"""What the options of ``[db]`` and the URL say, checked once.

Imports nothing foreign, so that options can be listed where the library is not installed.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.handles import HandleLimits, read_limits
from nb_api import config
from pubsub_api.errors import InvalidConfig

_DEFAULT_SCHEMA = "heliograph"
# Unquoted in SQL, and short enough for the name of a channel that begins with it.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


@dataclasses.dataclass(frozen=True)
class PostgresSettings:
    """Everything the driver needs to know."""

    conninfo: str = dataclasses.field(repr=False)
    """For libpq.  May hold a password."""
    address: str
    """The URL without credentials: what errors show."""
    schema: str
    connect_timeout_s: float
    operation_timeout_s: float
    snapshot_idle_timeout_s: float
    snapshot_portion: int
    limits: HandleLimits

    @property
    def channel(self) -> str:
        """Where commits are announced.  PostgreSQL keeps the channels of its databases apart; this, the schemas."""
        return f"heliograph_{self.schema}"


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> PostgresSettings:
    """Translate the groups and the URL, whose query is libpq's except for ``schema``.  Raises InvalidConfig."""
    common = conf[config.GROUP]
    query = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
    schemas = [value for name, value in query if name == "schema"]
    schema = schemas[-1] if schemas else _DEFAULT_SCHEMA
    if not _SCHEMA.fullmatch(schema):
        raise InvalidConfig(
            f"{schema!r} cannot be the schema of a database: it is 1 to 48 lower-case letters, digits and underscores, "
            "and begins with no digit"
        )
    rest = urllib.parse.urlencode([pair for pair in query if pair[0] != "schema"], quote_via=urllib.parse.quote)
    shown = url._replace(scheme="postgresql", netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return PostgresSettings(
        conninfo=url._replace(scheme="postgresql", query=rest, fragment="").geturl(),
        address=f"{shown} (schema {schema})",
        schema=schema,
        connect_timeout_s=common.connect_timeout,
        operation_timeout_s=common.operation_timeout,
        snapshot_idle_timeout_s=common.snapshot_idle_timeout,
        snapshot_portion=common.snapshot_portion,
        limits=read_limits(conf),
    )
