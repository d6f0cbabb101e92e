"""The history of the head as the feed of changes.  `drivers.db.etcd` tells how it is written."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from drivers.db.etcd.http import Compacted, EtcdClient, KeyValue, RangeAnswer, TxnAnswer
from drivers.db.etcd.keys import Keys, Record
from nb_api.db_api import Change
from nb_api.errors import DbUnavailable, RevisionTooOld

_SHORT = 4
"""A stretch of the feed is short when so many transactions can ask for the head at each of its revisions."""
_FOREVER_S = 86_400.0 * 365

_decode_record = msgspec.msgpack.Decoder(Record).decode


class EtcdFeed:
    """Reads only.  Raises what `EtcdClient` raises, except Compacted."""

    def __init__(self, client: EtcdClient, keys: Keys, timeout_s: float, operations_max: int) -> None:
        self._client = client
        self._keys = keys
        self._timeout_s = timeout_s
        self._operations_max = operations_max

    def head(self) -> KeyValue | None:
        """The newest change, None when there was none."""
        return self._head_and_store_revision()[0]

    def changes(self, after: int, limit: int) -> list[Change]:
        """Raises RevisionTooOld."""
        while True:
            head = self.head()
            if head is None or head.mod_revision <= after:
                return []
            is_short = head.mod_revision - after <= _SHORT * self._operations_max
            read = self._read_short if is_short else self._read_long
            try:
                return self._objects_of(read(after, head.mod_revision, limit))
            except Compacted:
                after = self._skip_compacted(after)

    def wait(self, after: int, deadline: float) -> bool:
        """Block until the head is newer.  The watch begins where the look at the head ended."""
        head, store_revision = self._head_and_store_revision()
        if head is not None and head.mod_revision > after:
            return True
        request = {"key": self._keys.head, "start_revision": max(after, store_revision) + 1}
        timeout_s = min(deadline - time.monotonic(), _FOREVER_S)
        with contextlib.closing(self._client.watch(request, timeout_s)) as results:
            for result in results:
                if result.canceled:
                    raise DbUnavailable("etcd has cancelled the watch")
                if result.events:
                    return True
        return False

    def find_cut(self, keep_changes: int) -> tuple[int, int]:
        """The revision of the last change to forget, and how many are forgotten with it that are known now."""
        head = self.head()
        if head is None or head.version <= keep_changes:
            return 0, 0
        compacted = self._compacted()
        forgotten = self._count_before(compacted)
        last = head.version - keep_changes
        if last <= forgotten:
            return 0, 0
        return self._revision_of(last, max(1, compacted), head.mod_revision), last - forgotten

    def _head_and_store_revision(self) -> tuple[KeyValue | None, int]:
        answer = self._client.call("kv/range", {"key": self._keys.head}, RangeAnswer)
        return (answer.kvs[0] if answer.kvs else None), answer.header.revision

    def _read_short(self, after: int, newest: int, limit: int) -> list[KeyValue]:
        """The head as of every revision; revisions that are not ours show an older one again."""
        found: dict[int, KeyValue] = {}
        for start in range(after + 1, newest + 1, self._operations_max):
            stop = min(start + self._operations_max, newest + 1)
            for head in self._at([(self._keys.head, revision) for revision in range(start, stop)]):
                if head is not None and head.mod_revision > after:
                    found[head.mod_revision] = head
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def _read_long(self, after: int, newest: int, limit: int) -> list[KeyValue]:
        found: list[KeyValue] = []
        request = {"key": self._keys.head, "start_revision": after + 1}
        with contextlib.closing(self._client.watch(request, self._timeout_s)) as results:
            for result in results:
                if result.canceled:
                    raise Compacted
                found += [event.kv for event in result.events if event.kv.mod_revision <= newest]
                if len(found) >= limit or (result.events and result.events[-1].kv.mod_revision >= newest):
                    return found[:limit]
        raise DbUnavailable(f"the history was not sent within {self._timeout_s:g} s")

    def _objects_of(self, heads: list[KeyValue]) -> list[Change]:
        changes: list[Change] = []
        for start in range(0, len(heads), self._operations_max):
            wanted = [(head.value, head.mod_revision) for head in heads[start : start + self._operations_max]]
            for (name, revision), found in zip(wanted, self._at(wanted), strict=True):
                assert found is not None, "the object is put in the transaction that puts the head"
                changes.append(_decode_record(found.value).as_change(revision, *self._keys.split(name)))
        return changes

    def _at(self, wanted: Sequence[tuple[bytes, int]]) -> list[KeyValue | None]:
        """Keys as of revisions, in one transaction.  Raises Compacted."""
        operations: list[dict[str, Any]] = [
            {"request_range": {"key": key, "revision": revision}} for key, revision in wanted
        ]
        answer = self._client.call("kv/txn", {"success": operations}, TxnAnswer)
        ranges = [part.response_range for part in answer.responses]
        return [one.kvs[0] if one and one.kvs else None for one in ranges]

    def _skip_compacted(self, after: int) -> int:
        """The oldest revision to go on from, if nothing of ours is compacted away after the one given: the compaction
        may have been meant for others.  Raises RevisionTooOld otherwise, and when that cannot be known."""
        compacted = self._compacted()
        [head] = self._at([(self._keys.head, compacted)])
        newest_lost = 0
        if head is not None and head.mod_revision < compacted:
            newest_lost = head.mod_revision
        elif head is not None and head.version > 1:
            newest_lost = compacted - 1  # at the latest
        if newest_lost > after:
            raise RevisionTooOld(
                f"changes up to revision {newest_lost} are compacted away; {after} is too old",
                oldest_revision=newest_lost,
            )
        return compacted - 1

    def _compacted(self) -> int:
        """The oldest revision that etcd still knows, 0 when it knows all.  The head exists, so something is sent."""
        request = {"key": self._keys.head, "start_revision": 1}
        with contextlib.closing(self._client.watch(request, self._timeout_s)) as results:
            for result in results:
                if result.canceled or result.events:
                    return result.compact_revision
        raise DbUnavailable(f"the history was not sent within {self._timeout_s:g} s")

    def _count_before(self, revision: int) -> int:
        """How many changes are older than the oldest known revision."""
        [head] = self._at([(self._keys.head, revision)]) if revision else [None]
        if head is None:
            return 0
        return head.version - 1 if head.mod_revision == revision else head.version

    def _revision_of(self, ordinal: int, low: int, high: int) -> int:
        """The revision of the change of that number, which lies in between; many points are asked for at once."""
        while low < high:
            step = math.ceil((high - low) / self._operations_max)
            points = list(range(low, high, step))
            heads = self._at([(self._keys.head, point) for point in points])
            reached = [head is not None and head.version >= ordinal for head in heads]
            first = reached.index(True) if True in reached else len(points)
            high = points[first] if first < len(points) else high
            low = points[first - 1] + 1 if first else high
        return high
