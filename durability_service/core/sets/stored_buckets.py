"""A bucket on disk, and what a service has of it in memory.

On disk a bucket is a *row*, which holds one batch.  In memory a bucket has

* its digest, its number of samples and its oldest deletion, always;
* its *changes*: the instances that are not as they are in the row.  The store has them, too, but only as a log of
  changes, in which a search would be slow.  They stay in memory until the row is written again.  Samples of topics that
  never go to disk are kept here, too; they do not count as changes, because no write can remove them from memory;
* the content of its row, packed and perhaps unpacked, as long as `BucketMemory` has room for it.

`BucketMemory` limits changes and contents of all name-spaces of a service together.  It drops the contents of buckets
that were not used lately.  If changes take too much memory, `is_full_of_changes` has the owner write buckets.  A bucket
that is being written keeps its content until the row is durable.

Rows are read through `BucketRows`, which the owner of the core provides.  A row whose digest is not the one that was
written is damaged; it is never used.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from durability_service.core.sets.batches import EMPTY, BucketSummary, SampleBatch, find, pack, unpack
from durability_service.core.sets.buckets import Instances, by_instance
from durability_service.core.sets.samples import DIGEST_MODULUS, InstanceKey, Sample
from pubsub_api.core.errors import UndecodableBody

UNPACKED_BYTES = 600
"""Memory of an unpacked sample besides its event: a tuple, strings, an entry of a dict."""
_CHANGES_PART = 2
"""Changes may take one of this many parts of the memory."""
_WRITING_PART = 4
"""Contents that are being written may take one of this many parts of the memory."""
_CANDIDATES_MAX = 64
"""Buckets that one call of `BucketMemory.trim` tries to drop."""


class BucketRows(Protocol):
    """The rows of a store."""

    def read(self, name_space: str, number: int) -> SampleBatch:
        """The latest durable content of a row.  Blocks while it is read.  What it raises ends the service."""


class BucketMemory:
    """Limits the memory of the buckets of all name-spaces of a service, and reads their rows."""

    def __init__(self, bytes_max: int, rows: BucketRows | None = None) -> None:
        """``rows`` is None in a service without a store."""
        self.bytes_max = bytes_max
        self._rows = rows
        self.rows_bytes = 0
        """Memory of the contents of rows."""
        self.changes_bytes = 0
        self.pinned_bytes = 0
        """The part of ``rows_bytes`` that must stay: contents whose write is due or under way."""
        self.reads = 0
        """Rows that were read."""
        self._resident: deque[StoredBucket] = deque()
        """Buckets whose content is in memory."""
        self._is_trimming = False

    def read(self, name_space: str, number: int) -> SampleBatch:
        assert self._rows is not None, f"bucket {number} of {name_space} was never written"
        self.reads += 1
        return self._rows.read(name_space, number)

    @property
    def is_full_of_changes(self) -> bool:
        """Buckets should be written, so that their changes can leave memory."""
        return self.changes_bytes > self.bytes_max // _CHANGES_PART

    @property
    def is_full_of_writing(self) -> bool:
        """No more buckets should be written until some that are under way are durable."""
        return self.pinned_bytes > self.bytes_max // _WRITING_PART

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes keep the limit."""
        return self.rows_bytes + self.changes_bytes + size <= self.bytes_max

    def add_resident(self, bucket: StoredBucket) -> None:
        """The content of the bucket's row is in memory from now on, until `StoredBucket.drop_content` returns True."""
        self._resident.append(bucket)

    def trim(self) -> None:
        """Drop contents that were not used lately, until the limit is kept."""
        if self._is_trimming:  # `drop_content` calls this, too
            return
        self._is_trimming = True
        for _ in range(min(2 * len(self._resident), _CANDIDATES_MAX)):
            if self.has_room(0) or not self._resident:
                break
            bucket = self._resident.popleft()
            if not bucket.drop_content():
                self._resident.append(bucket)
        self._is_trimming = False


class BucketStorage(NamedTuple):
    """What the buckets of one name-space share."""

    name_space: str
    memory: BucketMemory
    is_stored: Callable[[str], bool]
    """Whether samples of a topic go to disk."""
    changed: dict[int, None]
    """Buckets with changes for the disk, in the order in which they got the first of these."""


class StoredBucket:
    """A bucket on disk.  The methods that `MemoryBucket` has, too, do the same."""

    __slots__ = (
        "_bytes", "_changes", "_changes_bytes", "_content", "_count", "_first_delete", "_is_resident", "_is_unwritten",
        "_is_used", "_number", "_pinned_bytes", "_row", "_storage", "_unpacked", "_writing", "digest",
    )  # fmt: skip

    def __init__(self, storage: BucketStorage, number: int) -> None:
        self._storage = storage
        self._number = number
        self.digest = 0
        self._count = 0
        self._first_delete = 0
        """A lower bound for the timestamps of samples that delete their instance; 0 if there are none."""
        self._row = 0, 0
        """Digest and number of samples of the row."""
        self._content: SampleBatch | None = EMPTY
        """The content of the row, or its next content; None if it is on disk only."""
        self._unpacked: dict[InstanceKey, tuple[Sample, ...]] | None = None
        """The same, unpacked."""
        self._changes: dict[InstanceKey, tuple[Sample, ...]] = {}
        self._is_unwritten = False
        """The content must be written, and no write of it was begun."""
        self._writing = 0
        """How many writes of the content are under way."""
        self._changes_bytes = 0
        self._bytes = 0
        """Memory of the content, packed and unpacked."""
        self._pinned_bytes = 0
        """The part of ``_bytes`` that must stay."""
        self._is_used = False
        self._is_resident = False

    # -- reading

    def is_empty(self) -> bool:
        return not self._count

    def size(self) -> int:
        return self._count

    def needs_read(self) -> bool:
        return self._content is None and self._unpacked is None

    def instances(self) -> Instances:
        row = self._row_instances() if self._may_unpack else by_instance(unpack(self._row_content()))
        if not self._changes:
            return row
        return {instance: samples for instance, samples in {**row, **self._changes}.items() if samples}

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        samples = self._changes.get(instance)
        if samples is not None:
            return samples
        if self._may_unpack:
            return self._row_instances().get(instance, ())
        self._is_used = True
        content = self._row_content()
        if self._content is None:
            self._content = content
            self._account()
        return find(content, instance)

    def samples(self) -> Iterable[Sample]:
        """All samples.  A content that has to be read for it does not stay in memory."""
        if self._changes:
            row = by_instance(unpack(self._row_content())) if self._unpacked is None else self._unpacked
            return itertools.chain.from_iterable({**row, **self._changes}.values())
        if self._unpacked is None:
            return unpack(self._row_content())
        return itertools.chain.from_iterable(self._unpacked.values())

    def batch(self) -> SampleBatch:
        return pack(list(self.samples()), self.digest) if self._changes else self._row_content()

    def may_have_deletes(self, before: int) -> bool:
        return 0 < self._first_delete < before

    def may_have(self, _topic_filter: str) -> bool:
        return bool(self._count)

    # -- the row

    def _row_content(self) -> SampleBatch:
        """The content of the row, from memory or from disk.  Raises UndecodableBody for a damaged row."""
        if self._content is not None:
            return self._content
        name_space = self._storage.name_space
        found = self._storage.memory.read(name_space, self._number)
        if (found.digest, found.count) != self._row:
            raise UndecodableBody(f"bucket {self._number} of {name_space} is not what was written there")
        return found

    @property
    def _may_unpack(self) -> bool:
        """The content of the row is unpacked in memory, or there is room for it."""
        return self._unpacked is not None or self._storage.memory.has_room(UNPACKED_BYTES * self._row[1])

    def _row_instances(self) -> dict[InstanceKey, tuple[Sample, ...]]:
        """The content of the row by instance.  Stays in memory as long as there is room."""
        self._is_used = True
        found = self._unpacked
        if found is None:
            self._content = self._row_content()
            self._unpacked = found = by_instance(unpack(self._content))
            self._account()
        return found

    def _account(self) -> None:
        """Tell `BucketMemory` how much memory the content takes now."""
        size = 0
        if self._row[1]:
            packed = len(self._content.content) if self._content is not None else 0
            size = packed if self._unpacked is None else 2 * packed + UNPACKED_BYTES * self._row[1]
        pinned = size if self._is_unwritten or self._writing else 0
        memory = self._storage.memory
        memory.rows_bytes += size - self._bytes
        memory.pinned_bytes += pinned - self._pinned_bytes
        self._bytes, self._pinned_bytes = size, pinned
        if size and not self._is_resident:
            self._is_resident = True
            memory.add_resident(self)
        memory.trim()

    def drop_content(self) -> bool:
        """Drop the content from memory, unless it was used lately or is not on disk yet.  True if it was dropped.

        An unpacked content is only packed; the next call drops it.
        """
        is_used, self._is_used = self._is_used, False
        if is_used:
            return False
        stays = self._writing or self._is_unwritten or self._unpacked is not None
        self._unpacked = None
        if not stays:
            self._content = None if self._row[1] else EMPTY
            self._is_resident = False
        self._account()
        return not stays

    def pack_idle(self) -> int:
        is_used, self._is_used = self._is_used, False
        if not is_used and self._unpacked is not None:
            self._unpacked = None
            self._account()
        return 0  # the content is packed already

    # -- changing

    def restore(self, found: BucketSummary) -> None:
        """The store has this row from an earlier run."""
        self.digest, self._count, self._first_delete = found.digest, found.samples, found.first_delete
        self._row = found.digest, found.samples
        self._content = None if found.samples else EMPTY

    def put(self, instance: InstanceKey, samples: tuple[Sample, ...], digest: int, count: int) -> None:
        self.digest = (self.digest + digest) % DIGEST_MODULUS
        self._count += count
        before = self._changes.get(instance)
        self._changes[instance] = samples
        if samples and samples[0].is_delete:
            self._note_delete(samples[0].timestamp)
        if self._storage.is_stored(instance[0]):
            self._note_changes(_size(samples) - (0 if before is None else _size(before)))
            self._storage.changed.setdefault(self._number)

    def _note_delete(self, timestamp: int) -> None:
        self._first_delete = min(self._first_delete or timestamp, timestamp)

    def _note_changes(self, size: int) -> None:
        self._changes_bytes += size
        self._storage.memory.changes_bytes += size

    def fill(self, batch: SampleBatch) -> None:
        if all(map(self._storage.is_stored, batch.topics)):
            self.digest, self._count = batch.digest, batch.count
            self._set_content(batch, None, {})
            self._storage.changed.setdefault(self._number)
            return
        for instance, samples in by_instance(unpack(batch)).items():
            self.put(instance, samples, 0, len(samples))
        self.digest = batch.digest

    def _set_content(
        self,
        content: SampleBatch,
        unpacked: dict[InstanceKey, tuple[Sample, ...]] | None,
        memory_only: dict[InstanceKey, tuple[Sample, ...]],
    ) -> None:
        """Make this the next content of the row.  ``memory_only`` are the instances that never go to disk."""
        self._note_changes(-self._changes_bytes)
        self._changes = memory_only
        self._first_delete = content.first_delete
        for samples in memory_only.values():
            if samples[0].is_delete:
                self._note_delete(samples[0].timestamp)
        self._row, self._content, self._unpacked = (content.digest, content.count), content, unpacked
        self._is_unwritten = True
        self._account()

    def write(self) -> SampleBatch:
        """The content with which the row is to be replaced.  Call `written` when it is durable."""
        if not self._is_unwritten or self._changes:
            is_stored, was_unpacked = self._storage.is_stored, self._unpacked is not None
            instances = self.instances()
            found = {one: samples for one, samples in instances.items() if is_stored(one[0])}
            # The row, too, may have samples of topics that only an earlier run kept on disk.
            memory_only = {one: samples for one, samples in instances.items() if one not in found}
            content = pack(list(itertools.chain.from_iterable(found.values())))
            self._set_content(content, found if was_unpacked else None, memory_only)
        assert self._content is not None
        self._is_unwritten = False
        self._writing += 1
        self._storage.changed.pop(self._number, None)
        return self._content

    def written(self) -> None:
        """The content that `write` returned is durable."""
        self._writing -= 1
        self._account()

    def forget(self) -> None:
        """Remove all samples, and forget the row."""
        self._note_changes(-self._changes_bytes)
        self._changes = {}
        self.digest = self._count = self._first_delete = 0
        self._row, self._content, self._unpacked, self._is_unwritten = (0, 0), EMPTY, None, False
        self._account()
        self._storage.changed.pop(self._number, None)

    @property
    def is_written(self) -> bool:
        """The row is durable and has all samples that belong on disk."""
        return not self._writing and self._number not in self._storage.changed


def _size(samples: tuple[Sample, ...]) -> int:
    """The memory of a changed instance, about."""
    event_bytes = len(samples[0][7]) if samples else 0
    return UNPACKED_BYTES // 2 + (UNPACKED_BYTES + event_bytes) * len(samples)
