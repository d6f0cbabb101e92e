"""How many descriptors this process may still open.

libzmq aborts the process when it gets no descriptor for a new context or socket.  So `check_room` is called first, and
raises an error instead; some descriptors are reserved for other uses.
"""

from __future__ import annotations

import math
import os
import resource
import time

from pubsub_api.errors import LimitReached

_DIRECTORY = "/proc/self/fd"
RESERVED = 16
"""Descriptors for other uses: short-lived files, a database, counting descriptors."""
CONTEXT = 9
"""Descriptors of a context: three wake-up calls, two epolls; and a waker and an epoll of the driver."""
SOCKET = 2
"""Descriptors of a socket before it connects: a wake-up call, and that of its monitor or listener."""
LINK_DESCRIPTORS = 3 * SOCKET
"""Descriptors of a subscriber's link: sockets for frames, their monitor, and questions."""

_AMPLE = 2048
"""With so many left, they are not counted again for `_REMEMBERED_S`: no process opens as many in that time."""
_REMEMBERED_S = 0.25


def room(count: int | None = None) -> int:
    """How many more descriptors may be opened.  ``count`` is the number in use, if the caller knows it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return RESERVED + 1_000_000
    return limit - (len(in_use()) if count is None else count)


def in_use() -> list[int]:
    """The open descriptors.  It also works when none is free, but slowly."""
    try:
        return [int(name) for name in os.listdir(_DIRECTORY)]
    except OSError:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return [number for number in range(limit) if os.path.lexists(f"{_DIRECTORY}/{number}")]


class _CachedRoom:
    """The room at the last count.  With thousands of open descriptors counting takes as long as opening some."""

    def __init__(self) -> None:
        self._left = 0
        self._until = -math.inf
        self._pid = 0

    def room(self, needed: int) -> int:
        """The room now; counted again unless there was ample room a moment ago."""
        self._left -= needed
        if self._left < _AMPLE or time.monotonic() > self._until or self._pid != os.getpid():
            self._left, self._until, self._pid = room(), time.monotonic() + _REMEMBERED_S, os.getpid()
            return self._left
        return self._left + needed


_cached_room = _CachedRoom()


def check_room(needed: int, what: str) -> None:
    """Raises LimitReached when fewer descriptors are left beside the reserve."""
    left = _cached_room.room(needed)
    if left < needed + RESERVED:
        raise LimitReached(
            f"{what} needs {needed} descriptors and {left} are left, {RESERVED} of them for others: raise the limit of "
            "open files (ulimit -n) or open less"
        )
