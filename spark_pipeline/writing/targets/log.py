"""Rows become events of a durable log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

import durable_log
from durable_log import LogApi, RecordConflict
from durable_log.config import frame_bytes_max
from durable_log.loading import build_log
from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX, Kind
from spark_pipeline.errors import PipelineError
from spark_pipeline.writing.staged_files import StagedPortion
from spark_pipeline.writing.targets.target import Ledger, MicroBatch, Target, in_chunks

_EVENTS_PER_FRAME = 512
_BYTES_PER_FRAME = 512 * 1024
_FRAMES_PER_APPEND = 256
_BYTES_PER_APPEND = 4 * 1024 * 1024
_PREFIX = "spark-sink/"


class LogTarget(Target):
    """The ledger is a record of the log; the log itself does not take the numbers of a batch twice."""

    def __init__(self, url: str, directory: str) -> None:
        super().__init__(url, directory)
        bytes_max = frame_bytes_max(build_log(url).conf)
        self.event_bytes_max = bytes_max - 2 * FRAME_OVERHEAD_BYTES_MAX
        self._bytes_per_frame = min(_BYTES_PER_FRAME, bytes_max // 2)

    def deliver(self, batch: MicroBatch, names: Sequence[str], *, is_only: bool = False) -> None:
        with contextlib.closing(durable_log.open(self.url)) as log:
            known, version = _read(log, batch.query)
            ledger = known.begin(batch, names)
            if ledger is not None:
                version = _write(log, batch.query, ledger, version)
                for together in in_chunks(
                    _frames(batch.guid, self.portions(ledger), self._bytes_per_frame), len,
                    count_max=_FRAMES_PER_APPEND, bytes_max=_BYTES_PER_APPEND,
                ):  # fmt: skip
                    log.append(together)
                _write(log, batch.query, None if is_only else ledger.end(), version)
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


def _frames(guid: bytes, portions: Iterable[StagedPortion], bytes_max: int) -> Iterator[bytes]:
    """Frames of at most so many events and bytes.  A larger event, which the log still takes, has a frame alone."""
    heads: dict[str, int] = {}
    for portion in portions:
        for topic, encoded in portion.by_topic():
            for chunk in in_chunks(encoded, len, count_max=_EVENTS_PER_FRAME, bytes_max=bytes_max):
                head = heads.get(topic, 0)
                heads[topic] = head + len(chunk)
                yield frames.pack(
                    Kind.DATA, guid, topic, pack_body(chunk), first=head + 1, after=head, count=len(chunk),
                    timestamp=time.time_ns(),
                )  # fmt: skip
