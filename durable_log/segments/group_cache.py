"""Row groups that were read from segments, and what was rebuilt of them, kept for the next read within a bound."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from durable_log.log_api import StoredFrame
from durable_log.segments.rebuilding import FrameRows

GroupKey = tuple[str, int]
"""Path of the file, and number of the row group in it."""


class _Group:
    def __init__(self, rows: FrameRows) -> None:
        self.rows = rows
        self.portions: dict[int, list[StoredFrame]] = {}
        self.bytes = rows.bytes


class GroupCache:
    """For any thread.  Two that want the same at once may both make it; one result is kept."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._groups: collections.OrderedDict[GroupKey, _Group] = collections.OrderedDict()
        self._bytes = 0

    def rows(self, key: GroupKey, read: Callable[[], FrameRows]) -> FrameRows:
        """What is known of a row group, else what ``read`` returns."""
        with self._lock:
            cached = self._groups.get(key)
            if cached is not None:
                self._groups.move_to_end(key)
                return cached.rows
        rows = read()
        with self._lock:
            if key not in self._groups:
                self._groups[key] = _Group(rows)
                self._grow(rows.bytes)
        return rows

    def frames(self, key: GroupKey, rows: FrameRows, portion: int) -> list[StoredFrame]:
        """The frames of a portion of a row group."""
        with self._lock:
            group = self._groups.get(key)
            cached = group.portions.get(portion) if group is not None else None
        if cached is not None:
            return cached
        found = rows.rebuild(portion)
        with self._lock:
            group = self._groups.get(key)
            if group is not None and portion not in group.portions:
                size = sum(len(one.frame) for one in found)
                group.portions[portion] = found
                group.bytes += size
                self._grow(size)
        return found

    def forget(self, path: str) -> None:
        """Drop what is known of a file."""
        with self._lock:
            for key in [key for key in self._groups if key[0] == path]:
                self._bytes -= self._groups.pop(key).bytes

    def _grow(self, size: int) -> None:
        """One group stays, however large it is: it is being read."""
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._groups) > 1:
            self._bytes -= self._groups.popitem(last=False)[1].bytes
