"""Watches that are kept: a follower that waits, reads and waits again hears of each change by its watch alone.

A watch covers the head and the objects, so what it reports of a transaction is its changes, whole: `wait` has them
already when it says that there are some.  It is opened at a revision that was just read, so its history is proved, and
goes on from there for as long as the connection holds; whatever ends it, the next `wait` reads the head again.

No thread reads it but the one that waits.  While no thread waits, the server keeps what comes, and cuts the watch off
when what it has to tell is compacted away.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import NamedTuple

import msgspec

from heliograph_drivers.db.etcd.http import EtcdClient, WatchStream
from heliograph_drivers.db.etcd.keys import EtcdKeys, EtcdRecord, end_of, named_by
from heliograph_drivers.db.etcd.wire.messages import KeyValue, WatchResult
from nb_api.db_api import Change
from pubsub_api.runtime import forking

_CHANGES_MAX = 1000
_BYTES_MAX = 8 * 1024 * 1024
"""What a watch has heard and no thread has read: no more is taken from the connection."""
_KEPT_MAX = 4
"""Watches that no thread uses at the moment, and no more than a quarter of ``connections_max``."""
_IDLE_S = 10.0

_decode_record = msgspec.msgpack.Decoder(EtcdRecord).decode


class _Heard(NamedTuple):
    """One change that the watch has reported."""

    revision: int
    store_revision: int
    name: bytes
    value: bytes


class EtcdWatch:
    """One watch.  For one thread at a time."""

    def __init__(self, client: EtcdClient, keys: EtcdKeys, position: int, store_revision: int) -> None:
        """``position``: the newest revision as of ``store_revision``.  Raises what `EtcdClient.open_watch` raises."""
        self._keys = keys
        self._position = position
        """The change before the first of what was heard."""
        self._heard: collections.deque[_Heard] = collections.deque()
        self._heard_bytes = 0
        self._is_over = False
        self._is_told = False
        """`listen` has said that there is something, and it was not read yet."""
        self.proved_at = self.used_at = time.monotonic()
        """When it is known to have told everything that there was; when it was used last."""
        self._stream: WatchStream = client.open_watch(
            {"key": keys.head, "range_end": end_of(keys.objects), "start_revision": store_revision + 1}
        )

    def listen(self, deadline: float) -> bool:
        """Wait until something was heard that is not read yet; takes all that is there.  False when the time is over,
        or `is_over`; one that has passed takes what is there.  Raises what `WatchStream.read` raises."""
        while not self._heard and not self._is_over:
            result = self._stream.read(deadline)
            if result is None:
                return False
            self._take(result)
        while not self._is_over and len(self._heard) < _CHANGES_MAX and self._heard_bytes < _BYTES_MAX:
            result = self._stream.read(0.0)
            if result is None:
                break
            self._take(result)
        self._is_told = bool(self._heard)
        if self._heard:
            self.proved_at = time.monotonic()
        return self._is_told

    @property
    def is_over(self) -> bool:
        """The server has ended it, it cannot be used for others either, or the keys were deleted."""
        return not self._heard and (self._is_over or self._stream.is_doubtful)

    def advance(self, position: int) -> bool:
        """Forget what was heard up to a revision.  False when the watch cannot go on from it."""
        if position == self._position:
            return True
        while self._heard and self._heard[0].revision <= position:
            self._forget_first()
        return position == self._position

    def read(self, position: int, limit: int) -> list[Change]:
        """What `listen` has just told, at most so many changes; nothing elsewhere, or when it is read again."""
        if position != self._position or not self._is_told:
            return []
        self._is_told = False
        changes: list[Change] = []
        while self._heard and len(changes) < limit:
            one = self._heard[0]
            changes.append(_decode_record(one.value).as_change(one.store_revision, *self._keys.split(one.name)))
            self._forget_first()
        return changes

    def close(self) -> None:
        self._stream.close()

    def _forget_first(self) -> None:
        first = self._heard.popleft()
        self._position = first.revision
        self._heard_bytes -= len(first.value)

    def _take(self, result: WatchResult) -> None:
        """Reports are of whole transactions.  Deleted objects are tombstones that are old."""
        if result.canceled:
            self._is_over = True
            return
        objects: dict[tuple[bytes, int], bytes] = {}
        heads: list[KeyValue] = []
        for event in result.events:
            if event.type == "PUT" and event.kv.key.startswith(self._keys.objects):
                objects[event.kv.key, event.kv.mod_revision] = event.kv.value
            elif event.kv.key == self._keys.head:
                heads.append(event.kv)
                self._is_over |= event.type != "PUT"  # the keys were deleted: the history is lost
        if self._is_over:
            return
        for head in heads:
            for revision, name in named_by(head):
                value = objects.get((name, head.mod_revision))
                if value is None:
                    self._is_over = True
                    return
                self._heard.append(_Heard(revision, head.mod_revision, name, value))
                self._heard_bytes += len(value)


class EtcdWatches:
    """The watches of one process that no thread uses at the moment, one for each thread that waits again and again."""

    def __init__(self, client: EtcdClient, keys: EtcdKeys) -> None:
        self._client = client
        self._keys = keys
        self._kept_max = min(_KEPT_MAX, client.settings.limits.count_max // 4)
        self._kept: dict[int, EtcdWatch] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        forking.register(self)

    def open(self, position: int, store_revision: int) -> EtcdWatch:
        return EtcdWatch(self._client, self._keys, position, store_revision)

    def take(self) -> EtcdWatch | None:
        """The watch that this thread has kept."""
        with self._lock:
            return self._kept.pop(threading.get_ident(), None)

    def keep(self, watch: EtcdWatch) -> None:
        """For the next call of this thread."""
        watch.used_at = time.monotonic()
        with self._lock:
            self._kept[threading.get_ident()] = watch
            surplus = [] if not self._is_closed else self._remove(list(self._kept))
            if len(self._kept) > self._kept_max:
                surplus += self._remove([min(self._kept, key=lambda thread: self._kept[thread].used_at)])
        for one in surplus:
            one.close()

    def close_idle(self) -> None:
        """Those that were not used for a while."""
        oldest = time.monotonic() - _IDLE_S
        with self._lock:
            unused = self._remove([thread for thread, watch in self._kept.items() if watch.used_at < oldest])
        for watch in unused:
            watch.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            unused = self._remove(list(self._kept))
        for watch in unused:
            watch.close()

    def after_fork_in_child(self) -> None:
        forking.set_aside(self._kept)
        self._kept = {}
        self._lock = threading.Lock()

    def _remove(self, threads: list[int]) -> list[EtcdWatch]:
        return [self._kept.pop(thread) for thread in threads]
