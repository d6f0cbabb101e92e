"""What comes before tables are made: a database in UTF8, and the lock that lets one process make them."""

from __future__ import annotations

import hashlib

from heliograph_drivers.postgres_common.pool import PostgresConnection
from heliograph_drivers.postgres_common.settings import PostgresSettings
from pubsub_api.errors import InvalidConfig


def check_encoding(connection: PostgresConnection, settings: PostgresSettings) -> None:
    """Raises InvalidConfig when the database cannot hold every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise InvalidConfig(f"{settings.address} is encoded in {encoding}; Heliograph needs a database in UTF8")


def lock_key(purpose: str, schema: str) -> int:
    """The key of an advisory lock.  Applications share these keys, so ours are unlikely numbers."""
    digest = hashlib.blake2b(f"heliograph {purpose} {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
