"""What happens to handles in a forked child: they are kept, and neither used nor closed.

A child must not use a socket, a thread or a foreign runtime that the parent owns, and closing it in the child could
disturb the parent.  Objects register here, and `after_fork_in_child` of each is called once in a child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from pubsub_api.core.errors import Forked


class Forkable(Protocol):
    def after_fork_in_child(self) -> None:
        """Replace locks, forget threads and hand every inherited handle to `set_aside`.  Must not block."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_set_aside: list[object] = []
"""Inherited handles, referenced for ever: garbage collection in the child would close them."""


def register(forkable: Forkable) -> None:
    _registered.add(forkable)


def set_aside(handle: object) -> None:
    _set_aside.append(handle)


def _call_all() -> None:
    for forkable in list(_registered):
        forkable.after_fork_in_child()


os.register_at_fork(after_in_child=_call_all)


class ForkGuard:
    """Remembers which process made an object, because a forked child can neither use nor close it."""

    __slots__ = ("_what", "pid")

    def __init__(self, what: str) -> None:
        self.pid = os.getpid()
        self._what = what

    @property
    def is_child(self) -> bool:
        return os.getpid() != self.pid

    def check(self) -> None:
        """Raises Forked in a child."""
        if os.getpid() != self.pid:
            raise Forked(
                f"this {self._what} belongs to process {self.pid} and cannot be used after fork(); "
                f"open a new {self._what} in the child"
            )
