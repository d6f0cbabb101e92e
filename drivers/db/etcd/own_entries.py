"""The entries of the outbox that this process has put, by name, so that they can be taken out without a look at it.

Their names rise, so that a stretch of them is one range of keys, and one operation of etcd takes it out.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable

from heliograph_drivers.db.etcd.keys import ENTRY_NUMBER_BYTES, EtcdKeys
from pubsub_api.runtime import forking

_REMEMBERED_MAX = 20_000
_PROCESS_BYTES = 8


class OwnEntries:
    """Bounded; what was put first is forgotten first.  Every method may be called from any thread."""

    def __init__(self, keys: EtcdKeys) -> None:
        self._keys = keys
        self._begin()
        forking.register(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process = os.urandom(_PROCESS_BYTES)
        self._numbers = itertools.count(1)
        self._put: dict[int, tuple[int, bytes]] = {}
        """Revision -> number and key."""

    def after_fork_in_child(self) -> None:
        self._begin()

    def next(self, place: int) -> tuple[int, bytes]:
        """Number and key for an entry that is about to be put.  Each has a number of its own, also when it is not put
        in the end."""
        number = next(self._numbers)
        identity = self._process + number.to_bytes(ENTRY_NUMBER_BYTES, "big")
        return number, self._keys.outbox_entry(identity, place)

    def was_put(self, revision: int, entry: tuple[int, bytes]) -> None:
        with self._lock:
            self._put[revision] = entry
            if len(self._put) > _REMEMBERED_MAX:
                del self._put[next(iter(self._put))]

    def ranges(self, revisions: Iterable[int]) -> tuple[list[tuple[bytes, bytes]], list[int]]:
        """Ranges of keys with the entries of these revisions and no others, and the revisions that are not known."""
        with self._lock:
            found = {revision: self._put.get(revision) for revision in revisions}
        unknown = [revision for revision, entry in found.items() if entry is None]
        ranges: list[tuple[bytes, bytes]] = []
        first, last, before = b"", b"", -1
        for number, key in sorted(entry for entry in found.values() if entry is not None):
            if number != before + 1 and first:
                ranges.append((first, last + b"\0"))
                first = b""
            first, last, before = first or key, key, number
        if first:
            ranges.append((first, last + b"\0"))
        return ranges, unknown

    def forget(self, revisions: Iterable[int]) -> None:
        """They are taken out."""
        with self._lock:
            for revision in revisions:
                self._put.pop(revision, None)
