"""Where a server is, as whom, and in which schema: read from a URL and checked once.

Imports nothing foreign, so that options can be listed where the library is not installed.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from typing import NamedTuple
from urllib.parse import SplitResult

from heliograph_drivers.db.handles import HandleLimits
from pubsub_api.errors import InvalidConfig

# Unquoted in SQL, and short enough for the name of a channel that begins with it.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


@dataclasses.dataclass(frozen=True)
class PostgresSettings:
    """What connections need to know."""

    conninfo: str = dataclasses.field(repr=False)
    """For libpq.  May hold a password."""
    address: str
    """The URL without credentials: what errors show."""
    schema: str
    connect_timeout_s: float
    operation_timeout_s: float
    idle_timeout_s: float
    """A transaction in which nothing is done for so long is ended by the server."""
    limits: HandleLimits


class PostgresAddress(NamedTuple):
    """What a URL says, see `PostgresSettings`."""

    conninfo: str
    address: str
    schema: str


def parse_address(url: SplitResult, *, default_schema: str) -> PostgresAddress:
    """Read a URL, whose query is libpq's except for ``schema``.  Raises InvalidConfig."""
    query = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
    schemas = [value for name, value in query if name == "schema"]
    schema = schemas[-1] if schemas else default_schema
    if not _SCHEMA.fullmatch(schema):
        raise InvalidConfig(
            f"{schema!r} cannot be the schema of a database: it is 1 to 48 lower-case letters, digits and underscores, "
            "and begins with no digit"
        )
    rest = urllib.parse.urlencode([pair for pair in query if pair[0] != "schema"], quote_via=urllib.parse.quote)
    shown = url._replace(scheme="postgresql", netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    conninfo = url._replace(scheme="postgresql", query=rest, fragment="").geturl()
    return PostgresAddress(conninfo, f"{shown} (schema {schema})", schema)
