"""Heliograph from `NbApi.put` to `LocalCache`, on whatever database and bus the URLs name, and SQLite without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from oslo_config import cfg

from bench.change_ends import TABLE, ChangeFollower, ChangeWriter, CopySink, ObjectWrite
from bench.ends import OPEN_TIMEOUT_S
from nb_api import LocalCache, NbApi, Resynced, config
from nb_api.core.copy.differences import CacheChange, Deleted
from nb_api.db_api import Write
from nb_api.loading import open_db
from nb_api.writing.publishing import DirectPublisher
from pubsub_api import loading
from pubsub_api.config import GROUP


def nb_conf(bus: str, *, workers: str = "", database: str = "") -> cfg.ConfigOpts:
    """The configuration of a process that writes or follows on this bus, or serves its workers.

    ``workers`` is the socket file of the publisher service; empty: each process publishes itself.
    """
    conf = loading.conf_from_url(bus)
    conf.set_override("enable_df_pub_sub", True, group=GROUP)
    conf.set_override("pub_sub_use_multiproc", bool(workers), group=GROUP)
    if workers:
        conf.set_override("publisher_multiproc_socket", workers, group=GROUP)
    if database:
        conf.register_opts(config.OPTIONS, group=config.GROUP)
        conf.set_override("url", database, group=config.GROUP)
    return conf


def split_bus(bus: str) -> tuple[str, str]:
    """The URL of the bus and the socket file of the service, from ``url`` or ``url#file``."""
    url, _, workers = bus.partition("#")
    return url, workers


class PutWriter(ChangeWriter):
    """``bus`` may name, behind a ``#``, the socket file of the publisher service."""

    def __init__(self, database: str, bus: str) -> None:
        url, workers = split_bus(bus)
        self._nb = NbApi.open(conf=nb_conf(url, workers=workers), url=database)

    @property
    def addresses(self) -> list[str]:
        publisher = self._nb.publisher
        is_bound = self._nb.session is not None and self._nb.session.capabilities.bind_based
        return [publisher.publisher.address] if is_bound and isinstance(publisher, DirectPublisher) else []

    def fill(self, writes: Sequence[ObjectWrite]) -> None:
        for portion in _portions(writes, self._nb.db.writes_max):
            with self._nb.transaction() as transaction:
                for write in portion:
                    transaction.create(TABLE, write.key, write.value, topic=write.topic)
        self.finish()

    def put(self, write: ObjectWrite) -> None:
        self._nb.put(TABLE, write.key, write.value, topic=write.topic)

    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        with self._nb.transaction() as transaction:
            for write in writes:
                transaction.update(TABLE, write.key, write.value, topic=write.topic)

    def finish(self) -> None:
        self._nb.flush(timeout_s=OPEN_TIMEOUT_S)

    def close(self) -> None:
        self._nb.close()


def tell_changes(on_change: Callable[[str, Any], None]) -> Callable[[Sequence[CacheChange]], None]:
    """A cache's callback that passes every new value on, with its key."""

    def on_changes(changes: Sequence[CacheChange]) -> None:
        for change in changes:
            if not isinstance(change, Resynced | Deleted):
                on_change(change.key, change.object.value)

    return on_changes


class CacheFollower(ChangeFollower):
    def __init__(self, database: str, bus: str, addresses: Sequence[str], sink: CopySink) -> None:
        with contextlib.ExitStack() as stack:
            self._nb = stack.enter_context(NbApi.open(conf=nb_conf(split_bus(bus)[0]), url=database))
            self._cache = stack.enter_context(
                LocalCache(
                    self._nb, tables=[TABLE], on_changes=tell_changes(sink.on_change), addresses=list(addresses) or None
                )
            )
            self._cache.wait_synced(timeout_s=OPEN_TIMEOUT_S)
            self._stack = stack.pop_all()

    def numbers(self) -> dict[str, int]:
        return {found.key: found.value["number"] for found in self._cache.get_all(TABLE)}

    def close(self) -> None:
        self._stack.close()


class SqliteWriter(ChangeWriter):
    """The same driver and the same transactions, without an outbox and without a bus."""

    def __init__(self, database: str, _bus: str) -> None:
        self._db = open_db(database, with_outbox=False)

    def fill(self, writes: Sequence[ObjectWrite]) -> None:
        for portion in _portions(writes, self._db.writes_max):
            self._db.apply([Write("create", TABLE, write.key, write.value, write.topic) for write in portion])

    def put(self, write: ObjectWrite) -> None:
        self._db.set(TABLE, write.key, write.value, topic=write.topic)

    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        self._db.apply([Write("set", TABLE, write.key, write.value, write.topic) for write in writes])

    def close(self) -> None:
        self._db.close()


def _portions(writes: Sequence[ObjectWrite], size: int) -> Iterator[Sequence[ObjectWrite]]:
    return (writes[first : first + size] for first in range(0, len(writes), size))
