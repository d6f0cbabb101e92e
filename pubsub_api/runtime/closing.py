"""Base classes of objects that must be closed: they add ``with`` or ``async with`` to ``close``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="Closeable")
A = TypeVar("A", bound="AsyncCloseable")


class Closeable(abc.ABC):
    """Leaving the ``with`` block closes the object, also after an exception, which is raised further."""

    _is_closed: bool
    _is_inherited: bool

    @property
    def is_closed(self) -> bool:
        """True as soon as `close` is called, even before it returns."""
        return self._is_closed

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything.  Idempotent."""

    def __repr__(self) -> str:
        about = self._about()
        return f"<{type(self).__name__}{about and ' '}{about}{self._state()}>"

    def _about(self) -> str:
        """What distinguishes this object from others of its class, such as an address or a name.  Does not block."""
        return ""

    def _state(self) -> str:
        if getattr(self, "_is_inherited", False):
            return " inherited"
        is_closed = getattr(self, "_is_closed", None)  # missing in some classes, and before __init__ has set it
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
        """Release everything.  Idempotent."""

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
