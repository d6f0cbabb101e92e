"""The records of a group in the log, as the process that leads it reads and writes them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping

from durable_log import config as log_config
from durable_log.errors import LogError
from durable_log.log_api import LogApi, Record
from pubsub_api.errors import UndecodableBody
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading.candidate import Claim, LeaderRecord
from shared_subscriptions.core.leading.partitions import PartitionRecord
from shared_subscriptions.leading.records import GroupStatus, decode_partition, encode_partition, encode_status
from shared_subscriptions.names import Names

LOG = logging.getLogger(__name__)

Write = tuple[str, bytes | None, int | None]

_COMPLAIN_S = 60.0
"""Between two complaints about the same."""


class GroupRecords:
    """Of one incarnation of a group: one that was declared anew is another group.  Reading raises LogError."""

    def __init__(self, log: LogApi, declaration: Declaration, counters: Counter[str]) -> None:
        self._log = log
        self._group = declaration.name
        self._incarnation = declaration.incarnation
        self._names = Names(declaration.name)
        self._counters = counters
        self._bytes_max = log_config.RECORD_BYTES_MAX
        self._complain_at = 0.0
        self._known: tuple[int, Declaration] | None = None
        """The declaration as it was read last, with the version of its record."""

    # -- reading

    def declared(self) -> Record | None:
        """The record of the declaration; None when the group is gone."""
        record = self._log.get_record(self._names.group)
        if record is None:
            return None
        if self._known is None or self._known[0] != record.version:
            self._known = record.version, declarations.decode(record.value)
        return record if self._known[1].incarnation == self._incarnation else None

    def declaration(self) -> Declaration | None:
        """None when the group is gone."""
        return self._known[1] if self.declared() is not None and self._known is not None else None

    def leader(self) -> tuple[LeaderRecord, int] | None:
        """The leader's record and its version."""
        record = self._log.get_record(self._names.leader)
        if record is None:
            return None
        try:
            return candidates.decode(record.value), record.version
        except UndecodableBody as error:
            raise LogError(f"{error}; a newer release may have written it") from error

    def partitions(self) -> dict[int, PartitionRecord]:
        return {
            self._names.partition_number(record.name): decode_partition(record.value)
            for record in self._log.list_records(self._names.partitions)
        }

    # -- what to write

    def registration(self, claim: Claim) -> Write:
        return self._names.leader, candidates.encode(claim.record), claim.expected

    def status(self, status: GroupStatus) -> Write | None:
        """None when there is too much of it for a record."""
        value = encode_status(status, bytes_max=self._bytes_max)
        return None if value is None else (self._names.status, value, None)

    def progress(
        self, changes: Mapping[int, PartitionRecord], deleted: Collection[int]
    ) -> tuple[dict[int, PartitionRecord], list[Write]]:
        """Records that can be written, and how: all of each, or as much as a record may hold."""
        records, writes = {}, list[Write]()
        for number, record in changes.items():
            value, is_whole = encode_partition(record, bytes_max=self._bytes_max)
            if value is None or not is_whole:
                self._complain(number, is_stored=value is not None)
            if value is not None:
                records[number] = record
                writes.append((self._names.partition(number), value, None))
        return records, [*writes, *((self._names.partition(number), None, None) for number in deleted)]

    def _complain(self, number: int, *, is_stored: bool) -> None:
        self._counters["records_cut" if is_stored else "records_too_large"] += 1
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN_S
            LOG.error(
                "Group %s: the progress of partition %d is larger than a record of the log, %d bytes, and stored %s; "
                "after a crash more is delivered again. Too many events are done before older ones are.",
                self._group, number, self._bytes_max, "in part" if is_stored else "not at all",
            )  # fmt: skip
