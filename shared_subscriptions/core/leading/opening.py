"""Which partitions have to wait for others: a shard that the log was given later took topics over from another one.

Its partitions are granted when those of that shard are done up to there, lane by lane, so that topics keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.partitions import Partition


class PartitionsInOrder:
    """``partitions`` are those of the leader, which adds and removes them."""

    def __init__(self, partitions: Mapping[int, Partition]) -> None:
        self._partitions = partitions
        self._closed: set[int] = set()

    def is_open(self, partition: Partition, declaration: Declaration) -> bool:
        """Whether all is done that comes before a partition."""
        lane = partition.number % declaration.lanes
        return all(
            self._has_done(shard * declaration.lanes + lane, offset, declaration.generation)
            for shard, offset in partition.info.after
        )

    def look(self, declaration: Declaration) -> bool:
        """Note which partitions wait; True when one of those does not any more that did when it was looked last."""
        former = self._closed & self._partitions.keys()
        self._closed = {
            number for number, one in self._partitions.items() if one.info.after and not self.is_open(one, declaration)
        }
        return bool(former - self._closed)

    def has_opened(self, declaration: Declaration) -> bool:
        """Whether one of those that waited need not wait any more."""
        return bool(self._closed) and self.look(declaration)

    def _has_done(self, number: int, offset: int, generation: int) -> bool:
        found = self._partitions.get(number)
        return not offset or (found is not None and found.generation == generation and found.done.low >= offset)
