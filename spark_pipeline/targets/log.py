"""Rows become events of a durable log."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

import durable_log
from durable_log import LogApi, RecordConflict
from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from spark_pipeline.errors import PipelineError
from spark_pipeline.staging import Portion
from spark_pipeline.targets.target import Ledger, Target, batch_guid

_EVENTS_PER_FRAME = 512
_FRAMES_PER_APPEND = 256
_PREFIX = "spark-sink/"


class LogTarget(Target):
    """The ledger is a record of the log; the log itself does not take the numbers of a batch twice."""

    def deliver(self, query: str, batch: int, names: Sequence[str], *, is_only: bool = False) -> None:
        with contextlib.closing(durable_log.open(self.url)) as log:
            ledger, version = _read(log, query)
            if ledger.delivered < batch:
                ledger = ledger.begin(batch, names)
                version = _write(log, query, ledger, version)
                for together in _chunks(_frames(batch_guid(query, batch), self.portions(ledger))):
                    log.append(together)
                _write(log, query, None if is_only else Ledger(delivered=batch), version)
        self.discard(ledger, names)

    def named(self) -> set[str]:
        with contextlib.closing(durable_log.open(self.url)) as log:
            ledgers = [msgspec.msgpack.decode(found.value, type=Ledger) for found in log.list_records(_PREFIX)]
        return {name for ledger in ledgers for name in ledger.files}


def _read(log: LogApi, query: str) -> tuple[Ledger, int]:
    found = log.get_record(_PREFIX + query)
    return (msgspec.msgpack.decode(found.value, type=Ledger), found.version) if found else (Ledger(), 0)


def _write(log: LogApi, query: str, ledger: Ledger | None, version: int) -> int:
    value = None if ledger is None else msgspec.msgpack.encode(ledger)
    try:
        return log.put_records([(_PREFIX + query, value, version)])[0]
    except RecordConflict as error:
        raise PipelineError(f"two writers run under the name of query {query!r}: give each its own") from error


def _frames(guid: bytes, portions: Iterable[Portion]) -> Iterator[bytes]:
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


def _chunks(items: Iterator[bytes]) -> Iterator[list[bytes]]:
    while chunk := list(itertools.islice(items, _FRAMES_PER_APPEND)):
        yield chunk
