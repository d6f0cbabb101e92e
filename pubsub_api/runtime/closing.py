"""``with`` and ``async with`` for what has to be closed."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="Closeable")
A = TypeVar("A", bound="AsyncCloseable")


class Closeable(abc.ABC):
    """Leaving the ``with`` block closes it, also when the block failed; an error goes on its way."""

    _is_closed: bool
    _is_inherited: bool

    @property
    def is_closed(self) -> bool:
        """`close` was called; it may not have returned yet."""
        return self._is_closed

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything.  Calling it again does nothing."""

    def __repr__(self) -> str:
        about = self._about()
        return f"<{type(self).__name__}{about and ' '}{about}{self._state()}>"

    def _about(self) -> str:
        """What tells it from others: an address, a name.  Never waits."""
        return ""

    def _state(self) -> str:
        if getattr(self, "_is_inherited", False):
            return " inherited"
        is_closed = getattr(self, "_is_closed", None)  # some do not keep it, and some are not made yet
        return "" if is_closed is None else " closed" if is_closed else " open"

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncCloseable(abc.ABC):
    """As `Closeable`, for ``async with``."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of everything.  Calling it again does nothing."""

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
