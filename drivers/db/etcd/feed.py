"""The history of the head as the feed of changes.  `drivers.db.etcd` tells how it is written."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from drivers.db.etcd.http import Compacted, EtcdClient, KeyValue, RangeAnswer, TxnAnswer, found_in
from drivers.db.etcd.keys import SLOTS, Head, Keys, Record, last_revision, slot_of
from nb_api import checks
from nb_api.db_api import Change
from nb_api.errors import DbUnavailable

_SHORT = 4
"""A stretch of the feed is short when so many transactions can ask for the head at each of its revisions."""
_FOREVER_S = 86_400.0 * 365

_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class EtcdFeed:
    """Reads only.  Raises what `EtcdClient` raises, except Compacted."""

    def __init__(self, client: EtcdClient, keys: Keys, timeout_s: float, operations_max: int) -> None:
        self._client = client
        self._keys = keys
        self._timeout_s = timeout_s
        self._operations_max = operations_max

    def revision(self) -> int:
        """The newest one, 0 when there is none."""
        head = self.head()
        return last_revision(head.mod_revision) if head else 0

    def head(self) -> KeyValue | None:
        """The newest change, None when there was none."""
        return self._head_and_store_revision()[0]

    def changes(self, after: int, limit: int) -> list[Change]:
        """Raises RevisionTooOld, RevisionUnknown."""
        while True:
            head = self.head()
            newest = last_revision(head.mod_revision) if head else 0
            checks.check_in_feed(after, compacted=0, newest=newest)
            if head is None or newest == after:
                return []
            start = max(1, (after + 1) // SLOTS)  # the next transaction, or the one that is not read to its end
            is_short = head.mod_revision - start < _SHORT * self._operations_max
            read = self._read_short if is_short else self._read_long
            try:
                heads = read(start, head.mod_revision, limit)  # each is at least one change, also the first
                return self._objects_of(heads, after, limit)
            except Compacted:
                after = self._skip_compacted(after)

    def wait(self, after: int, deadline: float) -> bool:
        """Block until the head is newer.  The watch begins where the look at the head ended.

        Raises RevisionUnknown.
        """
        head, store_revision = self._head_and_store_revision()
        newest = last_revision(head.mod_revision) if head else 0
        checks.check_in_feed(after, compacted=0, newest=newest)
        if newest > after:
            return True
        request = {"key": self._keys.head, "start_revision": store_revision + 1}
        timeout_s = min(deadline - time.monotonic(), _FOREVER_S)
        with contextlib.closing(self._client.watch(request, timeout_s)) as results:
            for result in results:
                if result.canceled:
                    raise DbUnavailable("etcd has cancelled the watch")
                if result.events:
                    return True
        return False

    def find_cut(self, keep_changes: int) -> tuple[int, int]:
        """The last transaction to forget, and how many changes are forgotten with it and those before it."""
        head, newest = self._head_and_store_revision()
        if head is None:
            return 0, 0
        oldest = self._compacted()
        total, forgotten = self._counts([newest, max(1, oldest)])
        forgotten = forgotten - self._written_in(oldest) if oldest else 0
        if total - keep_changes <= forgotten:
            return 0, 0
        last, count = self._last_within(total - keep_changes, max(1, oldest), newest)
        return (last, count - forgotten) if count > forgotten else (0, 0)

    def _head_and_store_revision(self) -> tuple[KeyValue | None, int]:
        answer = self._client.call("kv/range", {"key": self._keys.head}, RangeAnswer)
        return (answer.kvs[0] if answer.kvs else None), answer.header.revision

    def _read_short(self, first: int, newest: int, limit: int) -> list[KeyValue]:
        """The head as of every transaction; transactions that are not ours show an older one again."""
        found: dict[int, KeyValue] = {}
        for start in range(first, newest + 1, self._operations_max):
            stop = min(start + self._operations_max, newest + 1)
            for head in self._at([(self._keys.head, revision) for revision in range(start, stop)]):
                if head is not None and head.mod_revision >= first:
                    found[head.mod_revision] = head
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def _read_long(self, first: int, newest: int, limit: int) -> list[KeyValue]:
        found: list[KeyValue] = []
        request = {"key": self._keys.head, "start_revision": first}
        with contextlib.closing(self._client.watch(request, self._timeout_s)) as results:
            for result in results:
                if result.canceled:
                    raise Compacted
                found += [event.kv for event in result.events if event.kv.mod_revision <= newest]
                if len(found) >= limit or (result.events and result.events[-1].kv.mod_revision >= newest):
                    return found[:limit]
        raise DbUnavailable(f"the history was not sent within {self._timeout_s:g} s")

    def _objects_of(self, heads: list[KeyValue], after: int, limit: int) -> list[Change]:
        wanted = [
            (name, head.mod_revision)
            for head in heads
            for slot, name in _slots(head)
            if head.mod_revision * SLOTS + slot > after
        ][:limit]
        changes: list[Change] = []
        for start in range(0, len(wanted), self._operations_max):
            portion = wanted[start : start + self._operations_max]
            for (name, revision), found in zip(portion, self._at(portion), strict=True):
                assert found is not None, "the object is put in the transaction that puts the head"
                changes.append(_decode_record(found.value).as_change(revision, *self._keys.split(name)))
        return changes

    def _at(self, wanted: Sequence[tuple[bytes, int]]) -> list[KeyValue | None]:
        """Keys as of revisions, in one transaction.  Raises Compacted."""
        operations: list[dict[str, Any]] = [
            {"request_range": {"key": key, "revision": revision}} for key, revision in wanted
        ]
        return found_in(self._client.call("kv/txn", {"success": operations}, TxnAnswer))

    def _skip_compacted(self, after: int) -> int:
        """The oldest revision to go on from, if nothing of ours is compacted away after the one given: the compaction
        may have been meant for others.  Raises RevisionTooOld otherwise, and when that cannot be known."""
        compacted = self._compacted()
        [head] = self._at([(self._keys.head, compacted)])
        newest_lost = 0
        if head is not None and head.mod_revision < compacted:
            newest_lost = last_revision(head.mod_revision)
        elif head is not None and head.version > 1:
            newest_lost = last_revision(compacted - 1)  # at the latest
        checks.check_in_feed(after, compacted=newest_lost, newest=after)
        return last_revision(compacted - 1)

    def _compacted(self) -> int:
        """The oldest revision that etcd still knows, 0 when it knows all.  The head exists, so something is sent."""
        request = {"key": self._keys.head, "start_revision": 1}
        with contextlib.closing(self._client.watch(request, self._timeout_s)) as results:
            for result in results:
                if result.canceled or result.events:
                    return result.compact_revision
        raise DbUnavailable(f"the history was not sent within {self._timeout_s:g} s")

    def _counts(self, store_revisions: Sequence[int]) -> list[int]:
        """How many changes there had been as of each of them."""
        first, end = self._keys.heads
        operations = [
            {"request_range": {"key": first, "range_end": end, "revision": revision, "keys_only": True}}
            for revision in store_revisions
        ]
        answer = self._client.call("kv/txn", {"success": operations}, TxnAnswer)
        ranges = [part.response_range for part in answer.responses]
        return [sum(kv.version * self._keys.size_of(kv.key) for kv in one.kvs) if one else 0 for one in ranges]

    def _written_in(self, store_revision: int) -> int:
        """How many changes that transaction was."""
        [head] = self._at([(self._keys.head, store_revision)])
        return len(_decode_head(head.value).names) if head and head.mod_revision == store_revision else 0

    def _last_within(self, count: int, low: int, high: int) -> tuple[int, int]:
        """The newest transaction up to which there were at most so many changes, and how many.  It lies in between, or
        just before; many points are asked for at once."""
        low, counted = low - 1, 0  # known to be within; what lies above high is not
        while low < high:
            step = math.ceil((high - low) / self._operations_max)
            points = list(range(low + step, high + 1, step))
            counts = self._counts(points)
            within = [found <= count for found in counts].count(True)
            high = points[within] - 1 if within < len(points) else high
            if within:
                low, counted = points[within - 1], counts[within - 1]
        return low, counted


def _slots(head: KeyValue) -> list[tuple[int, bytes]]:
    """Where each write of a transaction is among its revisions, and the key of its object."""
    names = _decode_head(head.value).names
    return [(slot_of(position, len(names)), name) for position, name in enumerate(names)]
