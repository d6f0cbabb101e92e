"""A bucket that is on disk: in memory are its digest, what was changed and not written yet, and, while there is room,
what is on disk.

A bucket on disk is a *row*, a batch.  In memory it has

* what a set must know of every bucket at any time: digest, number of samples, the first deletion;
* its *changes*: the instances that are not what they are in the row.  They are durable, as changes in the store, but
  finding them there would be slow, so they stay until the bucket is written anew.  Samples that are never on disk stay,
  and do not count: nothing that is written makes room for them;
* the content of its row, packed and perhaps spread out, as long as `BucketMemory` has room for it.

`BucketMemory` bounds both kinds for all name-spaces of a service together.  The content of rows is given up bucket by
bucket, those that were not used lately first.  Where changes take too much, `BucketMemory.is_full_of_changes` asks for
writing.  A bucket that is being written keeps its new content until that is durable: until then no row has it.

Rows are read through `BucketRows`, which the owner of the core provides.  What is read must be what was written, by its
digest: a row that is not is damage, and never used.
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

SPREAD_BYTES = 600
"""What a sample takes in memory besides its event when it is spread out: a tuple, strings, a place in a dict."""
_CHANGES_PART = 2
"""Changes may take one of so many parts of the memory."""
_LOOKED_AT_MAX = 64
"""Buckets that are looked at, each time memory is taken, for one whose content can be given up."""
_WRITING_PART = 4
"""What is being written may."""


class BucketRows(Protocol):
    """The rows of a store."""

    def read(self, name_space: str, number: int) -> SampleBatch:
        """A row as it was last durable.  What it raises ends the service."""


class NoRows:
    """For a service without a store."""

    def read(self, name_space: str, number: int) -> SampleBatch:
        raise AssertionError(f"bucket {number} of {name_space} was never written")


class BucketMemory:
    """How much memory the buckets of all name-spaces take beyond what is known of each, and where the rest is."""

    def __init__(self, bytes_max: int, rows: BucketRows | None = None) -> None:
        self.bytes_max = bytes_max
        self.rows: BucketRows = rows or NoRows()
        self.rows_bytes = 0
        """Content of rows."""
        self.changes_bytes = 0
        self.pinned_bytes = 0
        """Of the content of rows, what is being written, or is to be, and cannot be given up."""
        self.reads = 0
        """Rows that were read."""
        self._resident: deque[StoredBucket] = deque()
        self._is_trimming = False

    @property
    def is_full_of_changes(self) -> bool:
        """Buckets should be written, so that their changes can go."""
        return self.changes_bytes > self.bytes_max // _CHANGES_PART

    @property
    def is_full_of_writing(self) -> bool:
        """What is being written should be durable before more is."""
        return self.pinned_bytes > self.bytes_max // _WRITING_PART

    def has_room(self, size: int) -> bool:
        """For so many bytes more."""
        return self.rows_bytes + self.changes_bytes + size <= self.bytes_max

    def came(self, bucket: StoredBucket) -> None:
        """The content of a row is in memory now; `StoredBucket.give_up` says when it is not any more."""
        self._resident.append(bucket)

    def trim(self) -> None:
        """Give up what was not used lately until the limit is kept."""
        if self._is_trimming:
            return
        self._is_trimming, looked_at = True, 0
        while self.rows_bytes + self.changes_bytes > self.bytes_max and looked_at < min(
            2 * len(self._resident), _LOOKED_AT_MAX
        ):
            looked_at += 1
            bucket = self._resident.popleft()
            if not bucket.give_up():
                self._resident.append(bucket)
        self._is_trimming = False


class Shelf(NamedTuple):
    """Where the buckets of one name-space are."""

    name_space: str
    memory: BucketMemory
    is_stored: Callable[[str], bool]
    """Whether samples of a topic go to disk."""
    changed: dict[int, None]
    """Buckets with changes for the disk, those that have them longest first."""


class StoredBucket:
    __slots__ = (
        "_bytes", "_changes", "_changes_bytes", "_content", "_count", "_first_delete", "_is_new", "_is_resident",
        "_is_used", "_number", "_pinned_bytes", "_row", "_shelf", "_spread", "_writing", "digest",
    )  # fmt: skip

    def __init__(self, shelf: Shelf, number: int) -> None:
        self._shelf = shelf
        self._number = number
        self.digest = 0
        self._count = 0
        self._first_delete = 0
        """No instance was deleted before; 0 when none was."""
        self._row = 0, 0
        """Digest and number of samples of the row."""
        self._content: SampleBatch | None = EMPTY
        """What is in the row, or will be when it is written."""
        self._spread: dict[InstanceKey, tuple[Sample, ...]] | None = None
        """The same, spread out."""
        self._changes: dict[InstanceKey, tuple[Sample, ...]] = {}
        self._is_new = False
        """The content is to be written, and that is not under way yet."""
        self._writing = 0
        """How many writes of the content are under way."""
        self._changes_bytes = 0
        self._bytes = 0
        """Of the content, packed and spread out."""
        self._pinned_bytes = 0
        """Of these, what must not be given up."""
        self._is_used = False
        self._is_resident = False

    # -- asking

    def is_empty(self) -> bool:
        return not self._count

    def size(self) -> int:
        return self._count

    def is_cold(self) -> bool:
        return self._content is None and self._spread is None

    def instances(self) -> Instances:
        row = self._of_row() if self._may_spread else by_instance(unpack(self._row_content()))
        if not self._changes:
            return row
        return {instance: samples for instance, samples in {**row, **self._changes}.items() if samples}

    def get(self, instance: InstanceKey) -> tuple[Sample, ...]:
        samples = self._changes.get(instance)
        if samples is not None:
            return samples
        if self._may_spread:
            return self._of_row().get(instance, ())
        self._is_used = True
        content = self._row_content()
        if self._content is None:
            self._content = content
            self._account()
        return find(content, instance)

    def samples(self) -> Iterable[Sample]:
        """All; what has to be read for it is not kept."""
        if self._changes:
            row = by_instance(unpack(self._row_content())) if self._spread is None else self._spread
            return itertools.chain.from_iterable({**row, **self._changes}.values())
        if self._spread is None:
            return unpack(self._row_content())
        return itertools.chain.from_iterable(self._spread.values())

    def batch(self) -> SampleBatch:
        return pack(list(self.samples()), self.digest) if self._changes else self._row_content()

    def may_have_deletes(self, before: int) -> bool:
        return 0 < self._first_delete < before

    def may_have(self, _topic_filter: str) -> bool:
        return bool(self._count)

    # -- the row

    def _row_content(self) -> SampleBatch:
        """From memory or from disk."""
        if self._content is not None:
            return self._content
        shelf = self._shelf
        found = shelf.memory.rows.read(shelf.name_space, self._number)
        shelf.memory.reads += 1
        if (found.digest, found.count) != self._row:
            raise UndecodableBody(f"bucket {self._number} of {shelf.name_space} is not what was written there")
        return found

    @property
    def _may_spread(self) -> bool:
        """What is in the row is spread out in memory, or there is room for it."""
        return self._spread is not None or self._shelf.memory.has_room(SPREAD_BYTES * self._row[1])

    def _of_row(self) -> dict[InstanceKey, tuple[Sample, ...]]:
        """The instances in the row; they stay in memory for a while."""
        self._is_used = True
        found = self._spread
        if found is None:
            self._content = self._row_content()
            self._spread = found = by_instance(unpack(self._content))
            self._account()
        return found

    def _account(self) -> None:
        """What is in memory of the row is not what it was."""
        size = 0
        if self._row[1]:
            packed = len(self._content.content) if self._content is not None else 0
            size = packed if self._spread is None else 2 * packed + SPREAD_BYTES * self._row[1]
        pinned = size if self._is_new or self._writing else 0
        memory = self._shelf.memory
        memory.rows_bytes += size - self._bytes
        memory.pinned_bytes += pinned - self._pinned_bytes
        self._bytes, self._pinned_bytes = size, pinned
        if size and not self._is_resident:
            self._is_resident = True
            memory.came(self)
        memory.trim()

    def give_up(self) -> bool:
        """Leave the content to the disk, unless it was used lately or is not there yet."""
        is_used, self._is_used = self._is_used, False
        if is_used:
            return False
        is_pinned = self._writing or self._is_new or self._spread is not None  # packed, it may stay for another round
        self._spread = None
        if not is_pinned:
            self._content = None if self._row[1] else EMPTY
            self._is_resident = False
        self._account()
        return not is_pinned

    def pack_idle(self) -> int:
        """Keep the content packed only, when it was not used since the last call.  Nothing has to be packed for it."""
        is_used, self._is_used = self._is_used, False
        if not is_used and self._spread is not None:
            self._spread = None
            self._account()
        return 0

    # -- changing

    def restore(self, found: BucketSummary) -> None:
        """It is on disk, from an earlier run."""
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
        if self._shelf.is_stored(instance[0]):
            self._note_changes(_size(samples) - (0 if before is None else _size(before)))
            self._shelf.changed.setdefault(self._number)

    def _note_delete(self, timestamp: int) -> None:
        self._first_delete = min(self._first_delete or timestamp, timestamp)

    def _note_changes(self, size: int) -> None:
        self._changes_bytes += size
        self._shelf.memory.changes_bytes += size

    def become(self, batch: SampleBatch) -> None:
        """Hold what is in a batch; it was empty."""
        if all(map(self._shelf.is_stored, batch.topics)):
            self.digest, self._count = batch.digest, batch.count
            self._stand_on(batch, None, {})
            self._shelf.changed.setdefault(self._number)
            return
        for instance, samples in by_instance(unpack(batch)).items():
            self.put(instance, samples, 0, len(samples))
        self.digest = batch.digest

    def _stand_on(
        self,
        content: SampleBatch,
        spread: dict[InstanceKey, tuple[Sample, ...]] | None,
        beside: dict[InstanceKey, tuple[Sample, ...]],
    ) -> None:
        """This is the row from now on; what the bucket has ``beside`` it is never on disk."""
        self._note_changes(-self._changes_bytes)
        self._changes = beside
        self._first_delete = content.first_delete
        for samples in beside.values():
            if samples[0].is_delete:
                self._note_delete(samples[0].timestamp)
        self._row, self._content, self._spread, self._is_new = (content.digest, content.count), content, spread, True
        self._account()

    def write(self) -> SampleBatch:
        """What its row is to be from now on.  Call `written` when it is durable."""
        if not self._is_new or self._changes:
            is_stored, was_spread = self._shelf.is_stored, self._spread is not None
            instances = self.instances()
            found = {one: samples for one, samples in instances.items() if is_stored(one[0])}
            # Also of the row: its topics may have been for the disk in an earlier run only.
            beside = {one: samples for one, samples in instances.items() if one not in found}
            content = pack(list(itertools.chain.from_iterable(found.values())))
            self._stand_on(content, found if was_spread else None, beside)
        assert self._content is not None
        self._is_new = False
        self._writing += 1
        self._shelf.changed.pop(self._number, None)
        return self._content

    def written(self) -> None:
        """What `write` returned is durable."""
        self._writing -= 1
        self._account()

    def forget(self) -> None:
        """Hold nothing, and have no row."""
        self._note_changes(-self._changes_bytes)
        self._changes = {}
        self.digest = self._count = self._first_delete = 0
        self._row, self._content, self._spread, self._is_new = (0, 0), EMPTY, None, False
        self._account()
        self._shelf.changed.pop(self._number, None)

    @property
    def is_written(self) -> bool:
        """Its row is durable, and has all that belongs there."""
        return not self._writing and self._number not in self._shelf.changed


def _size(samples: tuple[Sample, ...]) -> int:
    """About what a change takes in memory."""
    return SPREAD_BYTES // 2 + (SPREAD_BYTES + len(samples[0][7])) * len(samples) if samples else SPREAD_BYTES // 2
