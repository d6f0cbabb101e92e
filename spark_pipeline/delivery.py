"""Taking what a micro-batch staged to its target, exactly once.

The *ledger* of a query says which batch was delivered last and, while one is on its way, which files it consists of.
The files are written down before anything is delivered.  So a commit that is tried again after a crash delivers the
same files, in the same order, and steps that had happened already have no second effect:

* in a **log** an event is named by publisher and number.  The publisher of a batch is made from query and batch,
  numbers count its events per topic, and a log does not take a number twice;
* in a **database** every transaction of a batch also moves the ledger, which is an object there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import msgspec

import durable_log
from durable_log import LogApi, RecordConflict
from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UsageError
from spark_pipeline import staging
from spark_pipeline.errors import PipelineError

_EVENTS_PER_FRAME = 512
_FRAMES_PER_APPEND = 256
_LEDGER = "spark-sink/"


class Ledger(msgspec.Struct, frozen=True):
    """Where a query stands."""

    delivered: int = -1
    """The last batch that took effect."""
    underway: int = -1
    """The batch whose files are named, -1 when there is none."""
    files: tuple[str, ...] = ()


class Target(ABC):
    """Where rows go.  Made on the driver, used in its commit."""

    @abstractmethod
    def deliver(self, query: str, batch: int, directory: str, names: Sequence[str]) -> None:
        """Let a batch take effect, once.  Raises PipelineError, LogError, DbError; then it may be tried again."""

    @abstractmethod
    def named(self) -> set[str]:
        """Files that some query's ledger names."""


def open_target(options: Mapping[str, str]) -> Target:
    """The target that a write's options name.  Raises UsageError."""
    given = [name for name in ("log", "db") if options.get(name)]
    if len(given) != 1:
        raise UsageError('give one of the options "log" and "db": the URL of what the rows go to')
    if given == ["log"]:
        return LogTarget(options["log"])
    raise UsageError("option db is not available yet")


class LogTarget(Target):
    """Rows become events of a durable log."""

    def __init__(self, url: str) -> None:
        self._url = url

    def deliver(self, query: str, batch: int, directory: str, names: Sequence[str]) -> None:
        with contextlib.closing(durable_log.open(self._url)) as log:
            ledger, version = _read(log, query)
            if ledger.delivered >= batch:
                staging.discard(directory, names)
                return
            if ledger.underway != batch:
                ledger = Ledger(ledger.delivered, batch, tuple(names))
                version = _write(log, query, ledger, version)
            _append(log, query, batch, directory, ledger.files)
            _write(log, query, Ledger(delivered=batch), version)
        staging.discard(directory, {*names, *ledger.files})

    def named(self) -> set[str]:
        with contextlib.closing(durable_log.open(self._url)) as log:
            ledgers = [msgspec.msgpack.decode(found.value, type=Ledger) for found in log.list_records(_LEDGER)]
        return {name for ledger in ledgers for name in ledger.files}


def _read(log: LogApi, query: str) -> tuple[Ledger, int]:
    found = log.get_record(_LEDGER + query)
    return (msgspec.msgpack.decode(found.value, type=Ledger), found.version) if found else (Ledger(), 0)


def _write(log: LogApi, query: str, ledger: Ledger, version: int) -> int:
    try:
        return log.put_records([(_LEDGER + query, msgspec.msgpack.encode(ledger), version)])[0]
    except RecordConflict as error:
        raise PipelineError(f"two writers run under the name of query {query!r}: give each its own") from error


def _append(log: LogApi, query: str, batch: int, directory: str, names: Sequence[str]) -> None:
    guid = hashlib.blake2b(f"{query}\0{batch}".encode(), digest_size=frames.GUID_BYTES).digest()
    portions = itertools.chain.from_iterable(staging.read_staged(directory, name) for name in names)
    for together in _chunks(_frames(guid, portions), _FRAMES_PER_APPEND):
        log.append(together)


def _frames(guid: bytes, portions: Iterator[staging.Portion]) -> Iterator[bytes]:
    heads: dict[str, int] = {}
    for portion in portions:
        for topic, encoded in portion.items():
            for start in range(0, len(encoded), _EVENTS_PER_FRAME):
                chunk = encoded[start : start + _EVENTS_PER_FRAME]
                head = heads.get(topic, 0)
                heads[topic] = head + len(chunk)
                yield frames.pack(
                    Kind.DATA, guid, topic, pack_body(chunk), first=head + 1, after=head, count=len(chunk),
                    timestamp=time.time_ns(),
                )  # fmt: skip


def _chunks(items: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk
