"""Older copies of a log's store, put back while programs have the log open."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Callable

from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer, schema_of

Copier = Callable[[], Callable[[], None]]
"""Copies a store; what it returns puts the copy back."""


def copier_of_postgres(postgres: PostgresServer, url: str) -> Copier:
    schema, tables = schema_of(url), ("log", "shards", "frames", "streams", "segments", "records")

    def copy() -> Callable[[], None]:
        with postgres.client() as client:
            for table in tables:
                client.execute(f"CREATE TABLE {schema}.{table}_copy AS TABLE {schema}.{table}")
        return restore

    def restore() -> None:
        with postgres.client() as client, client.transaction():
            for table in tables:
                client.execute(f"DELETE FROM {schema}.{table}")
                client.execute(
                    f"INSERT INTO {schema}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM {schema}.{table}_copy"
                )

    return copy


def copier_of_redis(server: RedisServer) -> Copier:
    def restore(keys: dict[bytes, bytes]) -> None:
        with server.client() as client, client.pipeline(transaction=True) as pipeline:
            pipeline.flushall()
            for key, value in keys.items():
                pipeline.restore(key, 0, value)
            pipeline.execute()

    def copy() -> Callable[[], None]:
        with server.client() as client:
            keys = {key: client.dump(key) for key in client.scan_iter()}
        return lambda: restore(keys)

    return copy


def copier_of_sqlite(path: pathlib.Path) -> Copier:
    def copy_to(source: str | pathlib.Path, target: str | pathlib.Path) -> None:
        with contextlib.closing(sqlite3.connect(source)) as one, contextlib.closing(sqlite3.connect(target)) as other:
            one.backup(other)

    def copy() -> Callable[[], None]:
        copy_to(path, f"{path}.copy")
        return lambda: copy_to(f"{path}.copy", path)

    return copy
