"""What is stored of the partitions of a group, and what is to be stored or deleted next."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.partitions import Partition, PartitionInfo, PartitionRecord
from shared_subscriptions.core.progress import GroupProgress


class PartitionStore:
    """``partitions`` are those of the leader, which adds and removes them."""

    def __init__(self, partitions: Mapping[int, Partition], records: Mapping[int, PartitionRecord]) -> None:
        self._partitions = partitions
        self._loaded = dict(records)
        """Records of partitions that the leader has not been told of yet."""
        self._deleted: set[int] = set()

    def load(self, number: int, info: PartitionInfo, declaration: Declaration) -> Partition:
        """A partition as it was stored, or as the declaration says that it begins."""
        self._deleted.discard(number)
        record = self._loaded.pop(number, None)
        is_new = record is None
        if record is None:
            position = declaration.position_of(number // declaration.lanes)
            record = PartitionRecord(GroupProgress(declaration.generation, position))
        partition = Partition.load(number, info, record)
        partition.is_dirty = is_new
        partition.expire()
        return partition

    def delete(self, number: int) -> None:
        self._deleted.add(number)

    def delete_rest(self, there: Collection[int]) -> None:
        """Delete what was not loaded and is not ``there``."""
        self._deleted |= self._loaded.keys() - set(there)
        self._loaded.clear()

    def changes(self) -> tuple[dict[int, PartitionRecord], set[int]]:
        """Records to store and partitions whose records are to be deleted, since the last call of `written`."""
        dirty = (partition for partition in self._partitions.values() if partition.is_dirty)
        return {partition.number: partition.record() for partition in dirty}, set(self._deleted)

    @property
    def has_changes(self) -> bool:
        return bool(self._deleted) or any(partition.is_dirty for partition in self._partitions.values())

    def written(self, records: Mapping[int, PartitionRecord], deleted: Collection[int]) -> None:
        """What `changes` returned is durable now."""
        for number, record in records.items():
            partition = self._partitions.get(number)
            if partition is not None and partition.record() == record:
                partition.is_dirty = False
        self._deleted -= set(deleted)
