"""From the plain value of an object to an instance of the class of its table, and back."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from nb_api.core.changes import DbObject
from nb_api.core.plain_values import AS_THEY_ARE
from nb_api.errors import ValueMismatch
from nb_api.models.declaring import is_pydantic, table_of
from nb_api.models.unknown_fields import kept
from pubsub_api.errors import UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.rare_logging import SeldomLog

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<place>.*)`$")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `(?P<field>.*?)`")
_NOTED_MAX = 10_000

_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder().decode


class TableModel(Generic[T]):
    """The class of a table, as a pair of functions.  Thread-safe: it holds no state."""

    def __init__(self, cls: type[T]) -> None:
        """Raises UsageError for a class that is not declared, or has a field of a type that cannot be stored."""
        self.cls = cls
        self.table = table_of(cls)
        self._is_pydantic = is_pydantic(cls)
        if self._is_pydantic:
            return
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.array_like:
            raise UsageError(f"{cls.__name__} is array_like: fields that others have added could not be told by name")
        try:
            msgspec.msgpack.Decoder(cls)  # looks at the types of all fields
        except Exception as error:  # whatever a type may raise
            raise UsageError(f"{cls.__name__} cannot be the class of table {self.table!r}: {error}") from error

    def parse(self, key: str, value: Any, found: DbObject | None = None) -> T:
        """An instance.  It may share parts with ``value``.  Raises ValueMismatch."""
        try:
            if self._is_pydantic:
                return self.cls.model_validate(value)  # type: ignore[attr-defined, no-any-return]
            return msgspec.convert(value, self.cls, builtin_types=AS_THEY_ARE)
        except Exception as error:  # the class may raise what it likes, and that says the same
            raise self._mismatch(key, error, found) from error

    def read(self, found: DbObject) -> DbObject[T]:
        """The object with an instance as its value.  Raises ValueMismatch."""
        value = self.parse(found.key, found.value, found)
        return DbObject(found.table, found.key, found.topic, value, found.version)

    def plain(self, key: str, instance: T) -> Any:
        """The value to store, checked.  Raises ValueMismatch."""
        if not isinstance(instance, self.cls):
            raise self._mismatch(key, TypeError(f"expected {self.cls.__name__}, got {type(instance).__name__}"))
        value = self._plain(key, instance)
        self.parse(key, value)  # an instance may hold anything: only reading it says whether it fits
        return value

    def _plain(self, key: str, instance: T) -> Any:
        """As it would be read: a tuple is a list then."""
        try:
            part = instance.model_dump(by_alias=True, warnings=False) if self._is_pydantic else instance  # type: ignore[attr-defined]
            return _decode(_encoded(part))
        except Exception as error:  # as above
            raise self._mismatch(key, error) from error

    def updated(self, key: str, stored: Any, change: T | Callable[[T], T]) -> Any:
        """The value to store in place of ``stored``: the instance, or what the function makes of the present one.

        What the class does not know stays as it is stored.  Raises ValueMismatch, and what the function raises.
        """
        is_instance = isinstance(change, self.cls)
        try:
            present = self.parse(key, stored)
        except ValueMismatch:
            if not is_instance:
                raise
            return self._repaired(key, stored, cast(T, change))
        known = self._plain(key, present)  # before the function, which may change what it is given
        wanted = change if is_instance else cast(Callable[[T], T], change)(present)
        return kept(stored, known, self.plain(key, cast(T, wanted)))

    def _repaired(self, key: str, stored: Any, instance: T) -> Any:
        """What is stored does not fit: all of it that the instance does not replace stays, if that fits."""
        wanted = self.plain(key, instance)
        if type(stored) is not dict or type(wanted) is not dict:
            return wanted
        merged = {**stored, **wanted}
        try:
            self.parse(key, merged)
        except ValueMismatch:
            return wanted
        return merged

    def _mismatch(self, key: str, error: Exception, found: DbObject | None = None) -> ValueMismatch:
        text, field = _explained(error)
        return ValueMismatch(
            f"{self.table} {key!r} does not fit {self.cls.__name__}: {field or 'the value'}: {text}",
            table=self.table,
            key=key,
            field=field,
            found=found,
        )


class Mismatches:
    """Counts what does not fit, each version of an object once, and logs it now and then.  Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._noted: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._log = SeldomLog(LOG, level=logging.ERROR)
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self.count = 0

    def note(self, error: ValueMismatch) -> None:
        version = 0 if error.object is None else error.object.version
        with self._lock:
            if version and self._noted.get((error.table, error.key)) == version:
                return
            if len(self._noted) >= _NOTED_MAX:
                self._noted.clear()  # counted once more then
            self._noted[error.table, error.key] = version
            self.count += 1
        self._log("%s (version %d)", error, version)


def _encoded(value: Any) -> bytes:
    """Equal sets have the same form, whatever the order of their elements, so that no write is caused by that."""
    try:
        return _encode_sorted(value)
    except TypeError:  # elements that cannot be compared, or of a type that cannot be stored, which is told now
        return _encode(value)


def _explained(error: Exception) -> tuple[str, str]:
    """What is wrong, and in which field."""
    if callable(errors := getattr(error, "errors", None)) and (found := errors()):  # of pydantic
        return str(found[0]["msg"]), _joined(found[0]["loc"])
    text, place = str(error) or type(error).__name__, ""
    if (at := _PLACE.search(text)) is not None:
        text, place = text[: at.start()], at["place"]
    if (missing := _FIELD.search(text)) is not None:
        place = f"{place}.{missing['field']}" if place else missing["field"]
    return text, place


def _joined(places: tuple[str | int, ...]) -> str:
    """As `msgspec` writes it."""
    return "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places).removeprefix(".")
