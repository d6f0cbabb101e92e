"""How many descriptors this process may still open.

libzmq ends the process when it gets none for a new context or socket.  So the maker of one asks here first, and gets
an error instead; a few are left for everything else.
"""

from __future__ import annotations

import math
import os
import resource
import time

from pubsub_api.errors import LimitReached

_DIRECTORY = "/proc/self/fd"
RESERVED = 16
"""Left for others: files that are opened for a moment, a database, the descriptors by which we look."""
CONTEXT = 9
"""What a context takes: three wake-up calls, two epolls, and ours, a wake-up call and an epoll."""
SOCKET = 2
"""What a socket takes before it is connected: a wake-up call, and that of its monitor or listener."""

_AMPLE = 2048
"""With so many left none need be counted for a moment: nobody opens as many in that time."""
_REMEMBERED_S = 0.25


def room(count: int | None = None) -> int:
    """How many more may be opened.  ``count`` when the caller has counted those that are."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return RESERVED + 1_000_000
    return limit - (len(in_use()) if count is None else count)


def in_use() -> list[int]:
    """Those that are open now.  Works without a free one, too, and is slow then."""
    try:
        return [int(name) for name in os.listdir(_DIRECTORY)]
    except OSError:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return [number for number in range(limit) if os.path.lexists(f"{_DIRECTORY}/{number}")]


class _Remembered:
    """How many were left at the last count.  Counting takes long where thousands are open, as long as opening some."""

    def __init__(self) -> None:
        self._left = 0
        self._until = -math.inf
        self._pid = 0

    def room(self, needed: int) -> int:
        """Count, unless there was ample room a moment ago."""
        self._left -= needed
        if self._left < _AMPLE or time.monotonic() > self._until or self._pid != os.getpid():
            self._left, self._until, self._pid = room(), time.monotonic() + _REMEMBERED_S, os.getpid()
            return self._left
        return self._left + needed


_remembered = _Remembered()


def check_room(needed: int, what: str) -> None:
    """Raises LimitReached when so many descriptors are not left beside the reserve."""
    left = _remembered.room(needed)
    if left < needed + RESERVED:
        raise LimitReached(
            f"{what} needs {needed} descriptors and {left} are left, {RESERVED} of them for others: raise the limit of "
            "open files (ulimit -n) or open less"
        )
