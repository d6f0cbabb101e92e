"""The ``[db_postgres]`` option group and what a URL adds to it, checked once.

Imports nothing foreign, so that options can be listed where the library is not installed.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg, types

from drivers.db.handles import HandleLimits, connection_options, read_limits
from nb_api import config
from pubsub_api.errors import InvalidConfig

GROUP = "db_postgres"

# Unquoted in SQL, and short enough for the name of a channel that begins with it.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")

OPTIONS: Sequence[cfg.Opt] = (
    cfg.StrOpt("schema", default="heliograph",
               help="Schema that holds the tables: one schema is one database of Heliograph. Lower-case letters, "
                    "digits and underscores. ?schema=name in the URL wins."),
    *connection_options("Every running call, every wait and every open snapshot"),
    cfg.Opt("snapshot_idle_timeout", type=types.Float(min=0.05, max=86_400.0), default=60.0,
            help="How long a snapshot may stand still between two portions. The server ends it then, because an open "
                 "one keeps the server from tidying up. Seconds."),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
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


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> Settings:
    """Translate the groups and the URL, whose query is libpq's except for ``schema``.  Raises InvalidConfig."""
    own, common = conf[GROUP], conf[config.GROUP]
    query = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
    schemas = [value for name, value in query if name == "schema"]
    schema = schemas[-1] if schemas else own.schema
    if not _SCHEMA.fullmatch(schema):
        raise InvalidConfig(
            f"{schema!r} cannot be the schema of a database: it is 1 to 48 lower-case letters, digits and underscores, "
            "and begins with no digit"
        )
    rest = urllib.parse.urlencode([pair for pair in query if pair[0] != "schema"], quote_via=urllib.parse.quote)
    shown = url._replace(scheme="postgresql", netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return Settings(
        conninfo=url._replace(scheme="postgresql", query=rest, fragment="").geturl(),
        address=f"{shown} (schema {schema})",
        schema=schema,
        connect_timeout_s=common.connect_timeout,
        operation_timeout_s=common.operation_timeout,
        snapshot_idle_timeout_s=own.snapshot_idle_timeout,
        snapshot_portion=common.snapshot_portion,
        limits=read_limits(conf, GROUP),
    )


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(GROUP, OPTIONS)]
