"""Whether a process may have committed to a SQLite file since the last look, told without asking SQLite.

Every commit writes to the write-ahead log, or to the file itself in the other journal modes, before it can be seen.  So
two files whose identity, size and time of change are as they were hold nothing new, but for two cases:

- Times of files are coarse, and a write-ahead log that is used again does not grow: a second write may leave no trace.
- What was written is seen when it has been synced, which may be much later, and leaves no trace.

Therefore a file that was written to a moment ago tells nothing, and SQLite is asked now and then in any case: what took
longer than `SETTLED_S` to sync is seen up to `ASK_S` later.
"""

from __future__ import annotations

import os
import pathlib
import time

SETTLED_S = 0.25
"""How long a file must not have been written to, before it counts as unchanged."""
ASK_S = 0.25
"""How long SQLite is not asked, at most."""

_File = tuple[int, int, int, int]
"""Device, inode, size, and time of the last write in nanoseconds."""


class FileWatch:
    """For one thread.  Does not open the files: closing one would take the locks that SQLite has on it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._paths = (str(path), f"{path}-wal")
        self._seen: object = None
        self._asked = 0.0

    def may_have_news(self, commits: int) -> bool:
        """Whether SQLite has to be asked, which the caller then does.  ``commits`` are those of this process."""
        now = time.monotonic()
        files = self._look()
        found = (files, commits)
        if files is not None and found == self._seen and now - self._asked < ASK_S:
            return False
        settled_ns = time.time_ns() - int(SETTLED_S * 1e9)
        is_settled = files is not None and all(one is None or one[3] < settled_ns for one in files)
        self._seen, self._asked = found if is_settled else None, now
        return True

    def _look(self) -> tuple[_File | None, _File | None] | None:
        """None when the database cannot be looked at: SQLite knows better what is wrong."""
        found = [_file(path) for path in self._paths]
        return None if found[0] is None else (found[0], found[1])


def _file(path: str) -> _File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
