"""``with`` for whatever has to be closed."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="Closeable")


class Closeable(abc.ABC):
    """Leaving the ``with`` block closes it, also when the block failed; an error goes on its way."""

    _is_closed: bool

    @property
    def is_closed(self) -> bool:
        """`close` was called; it may not have returned yet."""
        return self._is_closed

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything.  Calling it again does nothing."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
