"""Rows become objects of a database, and its outbox tells the bus."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

import pubsub_api
from nb_api import NbApi
from nb_api.config import GROUP, transaction_bytes_max
from nb_api.core.checks import check_object
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from nb_api.writing.publishing import uses_service
from pubsub_api.config import GROUP as BUS
from pubsub_api.config import new_conf
from pubsub_api.errors import InvalidEvent, NotSupported, UsageError
from spark_pipeline.errors import PipelineError
from spark_pipeline.writing.targets.target import Ledger, MicroBatch, Target

TABLE = "spark_sink"
TOPIC = "heliograph/spark-sink"
_ROWS_PER_TRANSACTION = 64
_ATTEMPTS_MAX = 20


class _Event(msgspec.Struct, array_like=True):
    table: str
    key: str
    action: str
    value: Any = None


_decode = msgspec.msgpack.Decoder(_Event).decode


class _Row(NamedTuple):
    topic: str
    event: _Event
    bytes: int


class DbTarget(Target):
    """The URL of a database, or the path of a configuration file, which may name a bus too.

    The ledger is an object of the table ``spark_sink``, moved in the same transaction as the rows.  ``create`` and
    ``set`` both mean that the object shall have this value, ``delete`` that it shall not be there.
    """

    def __init__(self, url: str, directory: str) -> None:
        super().__init__(url, directory)
        self._is_file = "://" not in url and pathlib.Path(url).is_file()
        if self._is_file:
            _check_bus(url)
        with self._open() as nb:
            self.event_bytes_max = min(int(nb.db.conf[GROUP].value_bytes_max), _rows_bytes_max(nb))

    def check_row(self, table: str, key: str, size: int) -> None:
        super().check_row(table, key, size)
        try:
            check_object(table, key)
        except UsageError as error:
            raise InvalidEvent(f"event {table}/{key}: {error}") from error

    def deliver(self, batch: MicroBatch, names: Sequence[str], *, is_only: bool = False) -> None:
        query = batch.query
        with self._open() as nb:
            known, version = _read(nb, query)
            ledger = known.begin(batch, names)
            if ledger is not None:
                version = _save(nb, query, ledger, version)
                done = ledger.done
                for rows in _transactions(itertools.islice(self._rows(ledger), done, None), _rows_bytes_max(nb)):
                    done += len(rows)
                    version = _apply(nb, query, msgspec.structs.replace(ledger, done=done), version, rows)
                if is_only:
                    nb.delete(TABLE, query, expected_version=version)
                else:
                    _save(nb, query, ledger.end(), version)
        self.discard(ledger, names)

    def named(self) -> set[str]:
        with self._open() as nb:
            ledgers = [msgspec.convert(found.value, Ledger) for found in nb.get_all(TABLE)]
        return {name for ledger in ledgers for name in ledger.files}

    def _rows(self, ledger: Ledger) -> Iterator[_Row]:
        for portion in self.portions(ledger):
            for topic, encoded in portion.in_order():
                yield _Row(topic, _decode(encoded), len(encoded))

    def _open(self) -> contextlib.AbstractContextManager[NbApi]:
        return contextlib.closing(NbApi.open(config_files=[self.url]) if self._is_file else NbApi.open(url=self.url))


def _check_bus(file: str) -> None:
    """Raises NotSupported when changes would be told by a publisher that ends with the batch, before a subscriber has
    found it."""
    conf = new_conf([file])
    if not conf[BUS].enable_df_pub_sub:
        return
    with pubsub_api.open(conf=conf) as session:
        if session.capabilities.bind_based and not uses_service(session):
            raise NotSupported(
                f"{file}: subscribers connect to each publisher, and a batch is over before they have: set [pubsub] "
                "pub_sub_use_multiproc, so that the publisher service of this host tells the changes"
            )


def _read(nb: NbApi, query: str) -> tuple[Ledger, int]:
    try:
        found = nb.get(TABLE, query)
    except ObjectNotFound:
        return Ledger(), 0
    return msgspec.convert(found.value, Ledger), found.version


def _save(nb: NbApi, query: str, ledger: Ledger, version: int) -> int:
    return _apply(nb, query, ledger, version, ())


def _apply(nb: NbApi, query: str, ledger: Ledger, version: int, rows: Sequence[_Row]) -> int:
    """Write rows and ledger together; returns the ledger's new version.  Tried again when another program creates or
    deletes one of the objects meanwhile."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            with nb.transaction() as transaction:
                value = msgspec.to_builtins(ledger)
                if version:
                    transaction.update(TABLE, query, value, expected_version=version)
                else:
                    transaction.create(TABLE, query, value, topic=TOPIC)
                for row in rows:
                    _write(nb, transaction, row)
        except (ObjectExists, ObjectNotFound, VersionConflict) as error:
            if _read(nb, query)[1] != version:
                raise PipelineError(f"two writers run under the name of query {query!r}: give each its own") from error
        else:
            return transaction.versions[0]
    raise PipelineError(f"query {query!r}: its objects changed {_ATTEMPTS_MAX} times while it wrote them")


def _write(nb: NbApi, transaction: Any, row: _Row) -> None:
    event = row.event
    try:
        nb.get(event.table, event.key)
    except ObjectNotFound:
        if event.action != "delete":
            transaction.create(event.table, event.key, event.value, topic=row.topic)
    else:
        if event.action == "delete":
            transaction.delete(event.table, event.key)
        else:
            transaction.update(event.table, event.key, event.value, topic=row.topic)


def _rows_bytes_max(nb: NbApi) -> int:
    """What the rows of a transaction may take together: the ledger is written with them."""
    return transaction_bytes_max(nb.db.conf) // 2


def _transactions(rows: Iterator[_Row], bytes_max: int) -> Iterator[list[_Row]]:
    """Rows in portions of bounded size in which no object comes twice."""
    together: list[_Row] = []
    names: set[tuple[str, str]] = set()
    size = 0
    for row in rows:
        name = (row.event.table, row.event.key)
        if name in names or len(together) == _ROWS_PER_TRANSACTION or (together and size + row.bytes > bytes_max):
            yield together
            together, names, size = [], set(), 0
        together.append(row)
        names.add(name)
        size += row.bytes
    if together:
        yield together
