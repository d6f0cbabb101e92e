"""Which class describes the values of which table."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nb_api.core.checks import check_name
from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_arguments: Any) -> Callable[[Any], Any]:
        """Says something to type checkers and nothing else; Python has it since 3.11."""
        return lambda found: found


C = TypeVar("C", bound=type)

_TABLES: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Model:
    """Base of a class whose instances are values of a table, as in ``class Port(Model, table="port")``.

    Each subclass is made a dataclass.  ``table`` may be left out for one that is only part of others, and for a base.
    ``frozen``, ``kw_only`` and ``order`` are those of `dataclasses.dataclass`.
    """

    def __init_subclass__(
        cls, *, table: str | None = None, frozen: bool = False, kw_only: bool = False, order: bool = False
    ) -> None:
        """Raises InvalidObject for a name that no table can have."""
        super().__init_subclass__()
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only, order=order)(cls)
        if table is not None:
            stored_in(table)(cls)


def stored_in(table: str) -> Callable[[C], C]:
    """Decorates a dataclass, a `msgspec.Struct` or a pydantic model: its instances are values of this table.

    Raises InvalidObject for a name that no table can have, UsageError for another class.
    """
    check_name(table, "table")

    def declare(cls: C) -> C:
        if not (isinstance(cls, type) and (dataclasses.is_dataclass(cls) or _is_struct(cls) or is_pydantic(cls))):
            raise UsageError(f"{cls!r} is no dataclass, no msgspec.Struct and no pydantic model")
        _TABLES[cls] = table
        return cls

    return declare


def table_of(cls: type) -> str:
    """The table that a class was declared for.  A subclass is declared by itself.  Raises UsageError."""
    try:
        return _TABLES[cls]
    except (KeyError, TypeError):
        raise UsageError(
            f"{cls!r} is not declared for a table: class {getattr(cls, '__name__', 'Port')}(Model, table=...), "
            "or @stored_in(table)"
        ) from None


def is_pydantic(cls: type) -> bool:
    """Told by what is called, so that pydantic need not be installed.  Of version 2 or later."""
    return callable(getattr(cls, "model_validate", None)) and callable(getattr(cls, "model_dump", None))


def _is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct)
