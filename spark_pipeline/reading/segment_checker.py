"""Sealed segments are checked before Spark's own reader gets to see them.

That reader compares the checksum of every page it reads, which finds a flipped byte.  It cannot find that a file was
cut and closed properly, or that another good file has its place.  The manifest of the log can: it has the size and the
SHA-256 of each segment.  They are compared once per process and file, and again when the file looks different.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
import threading
from collections.abc import Sequence

from durable_log.log_api import Segment
from durable_log.segments.directory import check_file

_REMEMBERED_MAX = 100_000

Looks = tuple[str, int, int, int]
"""What a file is recognised by: the digest that was found, its inode, size and time of change."""


class SegmentChecker:
    """Checks segments and remembers, within a bound, which it has seen whole.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: collections.OrderedDict[str, Looks] = collections.OrderedDict()

    def check(self, segments: Sequence[Segment]) -> None:
        """Return when every file is, byte for byte, the one that was sealed.  Blocks while files are read, as many at a
        time as there are cores.  Raises LogCorrupt, which names the first file that is not."""
        unknown = [one for one in segments if not self._is_known(one)]
        if not unknown:
            return
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "heliograph-check") as pool:
            for _ in pool.map(self._check_one, unknown):
                pass

    def _is_known(self, segment: Segment) -> bool:
        looks = looks_of(segment)
        with self._lock:
            return looks is not None and self._seen.get(segment.path) == looks

    def _check_one(self, segment: Segment) -> None:
        looks = looks_of(segment)  # taken before: a file that changes meanwhile is looked at again
        check_file(segment)
        if looks is None:
            return
        with self._lock:
            self._seen[segment.path] = looks
            while len(self._seen) > _REMEMBERED_MAX:
                self._seen.popitem(last=False)


def looks_of(segment: Segment) -> Looks | None:
    """None when the file cannot be looked at."""
    try:
        found = os.stat(segment.path)
    except OSError:
        return None
    return segment.sha256, found.st_ino, found.st_size, found.st_mtime_ns
