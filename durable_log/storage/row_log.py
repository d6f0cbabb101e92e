"""What drivers share whose store has tables: a row for each frame (`durable_log.storage.frame_rows`), and records."""

from __future__ import annotations

import abc
import logging
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config
from durable_log.core import checks
from durable_log.core.checks import Write
from durable_log.log_api import Appended, Record
from durable_log.storage import frame_rows
from durable_log.storage.frame_rows import Batch
from durable_log.storage.identity import Lineage
from durable_log.storage.segmented import SegmentedLog
from pubsub_api.core.frame import Header

LOG = logging.getLogger(__name__)


class LogHeader(NamedTuple):
    """What a store says of its log."""

    shards: int
    lineage: Lineage


class StoredRows(NamedTuple):
    """What an append to a store did."""

    appended: Appended
    forgotten: int
    """Missing numbers that were forgotten."""


class RowLog(SegmentedLog):
    """Implements appending, and the checks of what is handed in, over what a driver does with its tables."""

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._frame_bytes_max = config.frame_bytes_max(conf)  # looked up once: it is needed for every append
        self._found = LogHeader(0, Lineage(""))

    # -- what a driver provides

    @abc.abstractmethod
    def check_open(self) -> None:
        """Raises Closed."""

    @abc.abstractmethod
    def append_rows(self, batch: Batch, shards: int) -> StoredRows | None:
        """Store what is new, durably.  None, and nothing happens, when the log does not have so many shards: the frames
        may belong to others."""

    @abc.abstractmethod
    def note_heads(self, heads: Sequence[tuple[bytes, str, int]], shards: int) -> bool:
        """As `note_missing`.  False, and nothing happens, when the log does not have so many shards."""

    @abc.abstractmethod
    def read_record(self, name: str) -> Record | None: ...

    @abc.abstractmethod
    def write_records(self, writes: Sequence[Write]) -> list[int]:
        """As `put_records`, at least one."""

    # -- what follows from it

    @property
    def lineage(self) -> Lineage:
        return self._found.lineage

    def append(self, frames: Sequence[bytes]) -> Appended:
        headers = checks.read_headers(frames, bytes_max=self._frame_bytes_max)
        if not frames:
            self.check_open()
            return Appended(0, 0, {})
        while (done := self._append(frames, headers, self.shards)) is None:
            self.find_shards()
        if done.forgotten:
            LOG.warning("more than MISSING_RANGES_MAX holes: %d numbers that never came are forgotten", done.forgotten)
        return done.appended

    def _append(self, frames: Sequence[bytes], headers: Sequence[Header], shards: int) -> StoredRows | None:
        return self.append_rows(frame_rows.group(frames, headers, shards), shards)

    def note_missing(self, heads: Sequence[tuple[bytes, str, int]]) -> None:
        self.check_open()
        while heads and not self.note_heads(heads, self.shards):
            self.find_shards()

    def get_record(self, name: str) -> Record | None:
        checks.check_name(name)
        return self.read_record(name)

    def put_records(self, writes: Sequence[Write]) -> list[int]:
        checks.check_writes(writes, bytes_max=config.RECORD_BYTES_MAX)
        if not writes:
            self.check_open()
            return []
        return self.write_records(writes)
