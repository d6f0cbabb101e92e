"""The history of the head as the feed of changes.  `heliograph_drivers.db.etcd` tells how it is written."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from heliograph_drivers.db.etcd.http import EtcdClient, WatchBroken
from heliograph_drivers.db.etcd.keys import PLACES, EtcdKeys, EtcdRecord, Marker, named_by, newest_of, revisions_of
from heliograph_drivers.db.etcd.refusals import Compacted, StorageLimitReached
from heliograph_drivers.db.etcd.watches import EtcdWatch, EtcdWatches
from heliograph_drivers.db.etcd.wire.messages import KeyValue, RangeAnswer, TxnAnswer, found_in
from nb_api.core import checks
from nb_api.db_api import Change
from nb_api.errors import DbUnavailable
from nb_api.revisions import HistoryCheck, judge

_SHORT = 4
"""A stretch of the feed is short when so many transactions can ask for the head at each of its revisions."""
_SILENCE_S = 2.0
"""A watch that has told nothing for so long is compared with the head."""
_BRIEF_S = 0.1
"""A shorter wait asks what there is now: the head is read."""
_ARRIVAL_S = 0.5
"""What the head shows has reached a watch that is alive by then."""

_decode_record = msgspec.msgpack.Decoder(EtcdRecord).decode
_decode_marker = msgspec.msgpack.Decoder(Marker).decode


class EtcdFeed:
    """Reads only.  Raises what `EtcdClient` raises, except Compacted."""

    def __init__(self, client: EtcdClient, keys: EtcdKeys, timeout_s: float, operations_max: int) -> None:
        self._client = client
        self._keys = keys
        self._timeout_s = timeout_s
        self._operations_max = operations_max
        self._watches = EtcdWatches(client, keys)

    def revision(self) -> int:
        """The newest one, 0 when there is none."""
        return newest_of(self.head())

    def head(self) -> KeyValue | None:
        """The newest change, None when there was none."""
        return self._head_and_store_revision()[0]

    def changes(self, after: int, limit: int) -> list[Change]:
        """After a `wait` of this thread has said that there are some, those that it has heard of, without asking again.

        Raises RevisionTooOld, RevisionUnknown.
        """
        return self._heard_changes(after, limit) or self._read_changes(after, limit)

    def _heard_changes(self, after: int, limit: int) -> list[Change]:
        watch = self._watches.take()
        if watch is None:
            return []
        changes = watch.read(after, limit)
        self._watches.keep(watch)
        return changes

    def _read_changes(self, after: int, limit: int) -> list[Change]:
        # From the transaction that the caller has seen on: it proves the history, and may not be read to its end.
        start, is_proved = max(1, after // PLACES), after == 0
        while True:
            head = self.head()
            newest = newest_of(head)
            checks.check_in_feed(after, compacted=0, newest=newest)
            if head is None or newest == after:
                return []
            if after and after // PLACES < head.create_revision:  # keys were deleted since, and the feed began again
                checks.check_in_feed(after, compacted=0, newest=newest, is_known=False)
            start = max(start, head.create_revision)
            is_short = head.mod_revision - start < _SHORT * self._operations_max
            read = self._read_short if is_short else self._read_long
            try:
                heads = read(start, head.mod_revision, limit + 1)  # each is at least one change, but for the first
                is_known = is_proved or bool(heads and after in revisions_of(heads[0]))
                checks.check_in_feed(after, compacted=0, newest=newest, is_known=is_known)
                return self._objects_of(heads, after, limit)
            except Compacted:
                start, is_proved = self._skip_compacted(after)

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        """Those of the changes that are still there."""
        wanted = frozenset(revisions)
        heads = self._heads_at({revision // PLACES for revision in wanted})[0]
        with contextlib.suppress(Compacted):
            return [change for change in self._objects_of(heads, 0, checks.REVISION_MAX) if change.revision in wanted]
        return self.changes_of(revisions)

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        heads, newest, lost = self._heads_at({revision // PLACES for revision in revisions})
        known = {revision for head in heads for revision in revisions_of(head)}
        return judge(revisions, known, compacted=lost, newest=newest)

    def wait(self, after: int, deadline: float) -> bool:
        """Block until the head is newer.  The watch begins where the look at the head ended.

        A kept watch that has told everything a moment ago is believed; one that is silent for longer is compared with
        the head, for a connection may be gone without a word.

        Raises RevisionUnknown.
        """
        watch = self._watches.take()
        if watch is not None and not watch.advance(after):
            watch.close()
            watch = None
        try:
            return self._wait_with(watch, after, deadline)
        except WatchBroken:
            # The server may have been restarted.  If it is away, reading the head tells.
            return self._wait_with(None, after, deadline)

    def _wait_with(self, watch: EtcdWatch | None, after: int, deadline: float) -> bool:
        """The watch is kept, or another one, or closed.  Raises WatchBroken, RevisionUnknown."""
        try:
            while watch is None or not watch.listen(0.0):
                now = time.monotonic()
                if watch is None or watch.is_over or min(watch.proved_at + _SILENCE_S, deadline - _BRIEF_S) < now:
                    watch, is_newer = self._compare_with_head(watch, after, deadline)
                    if watch is None or is_newer:
                        return is_newer
                if watch.listen(min(deadline, watch.proved_at + _SILENCE_S)):
                    return True
                if time.monotonic() >= deadline and not watch.is_over:
                    return False
        except BaseException:
            if watch is not None:
                watch.close()
                watch = None
            raise
        finally:
            if watch is not None:
                self._watches.keep(watch)
        return True

    def _compare_with_head(self, watch: EtcdWatch | None, after: int, deadline: float) -> tuple[EtcdWatch | None, bool]:
        """The watch to listen to, and whether the head is newer than the caller.  None when there is no need for one,
        because there is news or no time.  Raises RevisionUnknown; the watch is the caller's to close then."""
        head, store_revision = self._head_and_store_revision()
        newest = newest_of(head)
        checks.check_in_feed(after, compacted=0, newest=newest)
        is_newer = newest > after
        if watch is not None:
            # What the head shows is on its way here, or the watch is dead.
            is_sound = not watch.is_over and (not is_newer or watch.listen(time.monotonic() + _ARRIVAL_S))
            if is_sound:
                watch.proved_at = time.monotonic()
                return watch, is_newer
            watch.close()
        if is_newer or time.monotonic() >= deadline:
            return None, is_newer
        return self._watches.open(after, store_revision), False

    def release_idle(self) -> None:
        """Close watches that were not used for a while."""
        self._watches.close_idle()

    def close(self) -> None:
        """After the client was closed.  Idempotent."""
        self._watches.close()

    def find_cut(self, keep_changes: int) -> tuple[int, int]:
        """The last transaction to forget, and how many changes are forgotten with it and those before it."""
        head, newest = self._head_and_store_revision()
        if head is None:
            return 0, 0
        oldest = max(self._compacted(), head.create_revision)
        total, counted = self._counts([newest, oldest])
        forgotten = counted - self._written_in(oldest)
        if total - keep_changes <= forgotten:
            return 0, 0
        last, count = self._last_within(total - keep_changes, oldest, newest)
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
        wanted = [(name, head.mod_revision) for head in heads for revision, name in named_by(head) if revision > after][
            :limit
        ]
        changes: list[Change] = []
        for start in range(0, len(wanted), self._operations_max):
            portion = wanted[start : start + self._operations_max]
            for (name, revision), found in zip(portion, self._at(portion), strict=True):
                assert found is not None, "the object is put in the transaction that puts the head"
                changes.append(_decode_record(found.value).as_change(revision, *self._keys.split(name)))
        return changes

    def _at(self, wanted: Sequence[tuple[bytes, int]]) -> list[KeyValue | None]:
        """Keys as of revisions, in one round trip.  Raises Compacted."""
        ranges: list[dict[str, Any]] = [{"key": key, "revision": revision} for key, revision in wanted]
        operations = [{"request_range": one} for one in ranges]
        try:
            return found_in(self._client.call("kv/txn", {"success": operations}, TxnAnswer, is_repeatable=True))
        except StorageLimitReached:  # a range is never refused for that
            found = [self._client.call("kv/range", one, RangeAnswer).kvs for one in ranges]
            return [kvs[0] if kvs else None for kvs in found]

    def revision_as_of(self, store_revision: int) -> int:
        """The newest one when etcd was there, 0 when there was none.  Raises Compacted."""
        return newest_of(self._at([(self._keys.head, store_revision)])[0])

    def _heads_at(self, store_revisions: Iterable[int]) -> tuple[list[KeyValue], int, int]:
        """The heads that these transactions have put, as far as they did and it is known, and the newest revision.
        Not those from before the head was deleted: that feed is lost.  And the newest one that is lost by
        compaction, if a transaction was asked for that may be."""
        head = self.head()
        if head is None:
            return [], 0, 0
        wanted, lost = sorted(one for one in store_revisions if 0 < one <= head.mod_revision), 0
        while True:
            try:
                found = [
                    one
                    for start in range(0, len(wanted), self._operations_max)
                    for one in self._at([(self._keys.head, at) for at in wanted[start : start + self._operations_max]])
                ]
            except Compacted:
                oldest, lost = self._floor()
                wanted = [one for one in wanted if one >= oldest]
            else:
                begin = head.create_revision
                heads = [one for one, at in zip(found, wanted, strict=True) if one and begin <= one.mod_revision == at]
                return heads, newest_of(head), lost

    def _skip_compacted(self, after: int) -> tuple[int, bool]:
        """Where to read on, and whether that proves what was seen: the compaction may have been meant for others, and
        have taken nothing of ours that is wanted.  Raises RevisionTooOld and RevisionUnknown otherwise."""
        oldest, lost = self._floor()
        is_known = after // PLACES >= oldest  # or will be found out, when it is read
        checks.check_in_feed(after, compacted=lost, newest=max(after, lost), is_known=is_known)
        return max(oldest, after // PLACES), after == lost

    def _floor(self) -> tuple[int, int]:
        """The oldest transaction that etcd knows, and the newest revision of the feed that is older, or which is the
        first that one can go on from because that cannot be known."""
        oldest = self._compacted()
        head, marker = self._at([(self._keys.head, oldest), (self._keys.marker, 0)])
        if head is None or head.mod_revision < oldest:
            return oldest, newest_of(head)
        if head.version == 1:
            return oldest, 0
        known = _decode_marker(marker.value) if marker else None
        return oldest, known.last if known and known.store_revision == oldest else newest_of(head)

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
        answer = self._client.call("kv/txn", {"success": operations}, TxnAnswer, is_repeatable=True)
        ranges = [part.response_range for part in answer.responses]
        return [sum(kv.version * self._keys.size_of(kv.key) for kv in one.kvs) if one else 0 for one in ranges]

    def _written_in(self, store_revision: int) -> int:
        """How many changes that transaction was."""
        [head] = self._at([(self._keys.head, store_revision)])
        return len(revisions_of(head)) if head and head.mod_revision == store_revision else 0

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
