"""Conversion between the stored value of an object and an instance of the class of its table."""

from __future__ import annotations

import datetime
import logging
import re
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from nb_api.core.changes import DbObject
from nb_api.errors import ValueMismatch
from nb_api.models.declaring import is_pydantic, table_of
from nb_api.models.unknown_fields import keep_unknown
from pubsub_api.errors import UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<place>.*)`$")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `(?P<field>.*?)`")
_NOTED_MAX = 10_000
_LOCAL_TIME = (
    ". It has a datetime without a time zone, which means another time on another host, and is stored as a text: add a "
    "time zone, for example by datetime.now(timezone.utc) or value.replace(tzinfo=timezone.utc)"
)

_AS_THEY_ARE = (bytes, type(msgspec.msgpack.decode(b"\xd6\xff\0\0\0\0")))
"""What msgspec's conversions would turn into text: bytes, and timestamps of msgpack."""
_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder().decode


class TableModel(Generic[T]):
    """Conversions for the class of a table.  Thread-safe: it has no state."""

    def __init__(self, cls: type[T]) -> None:
        """Raises UsageError for a class that is not declared, or has a field of a type that cannot be stored."""
        self.cls = cls
        self.table = table_of(cls)
        self._is_pydantic = is_pydantic(cls)
        if self._is_pydantic:
            return
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.array_like:
            raise UsageError(f"{cls.__name__} is array_like: added fields could not be recognised by their names")
        try:
            msgspec.msgpack.Decoder(cls)  # checks the types of all fields
        except Exception as error:  # a type may raise any exception
            raise UsageError(f"{cls.__name__} cannot be the class of table {self.table!r}: {error}") from error

    def parse(self, key: str, value: Any, found: DbObject | None = None) -> T:
        """An instance from a stored value, with which it may share parts.  Raises ValueMismatch."""
        try:
            if self._is_pydantic:
                return self.cls.model_validate(value)  # type: ignore[attr-defined, no-any-return]
            return msgspec.convert(value, self.cls, builtin_types=_AS_THEY_ARE)
        except Exception as error:  # the class may raise any exception
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
        self._check_stored(key, value, instance)  # fields of an instance may have any value: only parsing checks them
        return value

    def check(self, key: str, value: Any) -> None:
        """Check a plain value that will be written.  Raises ValueMismatch when a reader could not parse it."""
        try:
            stored = _decode(_encode(value))
        except Exception:  # noqa: BLE001  the database refuses a value that cannot be encoded
            stored = value
        self._check_stored(key, stored, value)

    def _check_stored(self, key: str, stored: Any, given: Any) -> None:
        try:
            self.parse(key, stored)
        except ValueMismatch as error:
            if isinstance(error.__cause__, Exception) and _has_local_time(given):
                raise self._mismatch(key, error.__cause__, advice=_LOCAL_TIME) from error.__cause__
            raise

    def _plain(self, key: str, instance: T) -> Any:
        """The value as it would be read from the database: a tuple becomes a list."""
        try:
            part = instance.model_dump(by_alias=True, warnings=False) if self._is_pydantic else instance  # type: ignore[attr-defined]
            return _decode(_encoded(part))
        except Exception as error:  # the class may raise any exception
            raise self._mismatch(key, error) from error

    def updated(self, key: str, stored: Any, change: T | Callable[[T], T]) -> Any:
        """The value to store instead of ``stored``: of an instance, or of what a function returns for the present one.

        Fields that the class does not know stay as they are.  Raises ValueMismatch, and what the function raises.
        """
        is_instance = isinstance(change, self.cls)
        try:
            present = self.parse(key, stored)
        except ValueMismatch:
            if not is_instance:
                raise
            return self._repaired(key, stored, cast(T, change))
        known = self._plain(key, present)  # before the function is called, which may change ``present``
        wanted = change if is_instance else cast(Callable[[T], T], change)(present)
        plain = self.plain(key, cast(T, wanted))
        merged = keep_unknown(stored, known, plain)
        return stored if merged is stored else self._without_contradictions(key, merged, plain)

    def _repaired(self, key: str, stored: Any, instance: T) -> Any:
        """The value to store for an instance, where the stored value does not fit.

        Fields that the instance does not replace stay, if the result fits with them.
        """
        wanted = self.plain(key, instance)
        if type(stored) is not dict or type(wanted) is not dict:
            return wanted
        return self._without_contradictions(key, {**stored, **wanted}, wanted)

    def _without_contradictions(self, key: str, merged: Any, wanted: Any) -> Any:
        """``merged``, without stored fields with which it would be read as another instance than ``wanted``.

        A class may omit a field that has its default, or read a field by a former name.  A stored field of such a name
        seems to be unknown to the class, but would replace the new value.
        """
        expected = self._as_read(key, wanted)
        if self._as_read(key, merged) == expected or expected != self._as_read(key, wanted):
            return (
                merged  # the second condition: the class parses a value differently each time, so no comparison helps
            )
        if type(merged) is not dict or type(wanted) is not dict:
            return wanted
        result = {}
        for name, part in merged.items():
            if self._as_read(key, {**wanted, name: part}) == expected:
                result[name] = part
            elif name in wanted:
                result[name] = wanted[name]
        return result if self._as_read(key, result) == expected else wanted

    def _as_read(self, key: str, value: Any) -> bytes | None:
        """The instance that the class parses from a value, in a form that can be compared; None if it does not fit."""
        try:
            return _encoded(self._plain(key, self.parse(key, value)))
        except ValueMismatch:
            return None

    def _mismatch(
        self, key: str, error: Exception, found: DbObject | None = None, *, advice: str = ""
    ) -> ValueMismatch:
        text, field = _explained(error)
        return ValueMismatch(
            f"{self.table} {key!r} does not fit {self.cls.__name__}: {field or 'the value'}: {text}{advice}",
            table=self.table,
            key=key,
            field=field,
            found=found,
        )


class Mismatches:
    """Counts objects that do not fit, each version once, and logs them at a limited rate.  Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._noted: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._log = RateLimitedLog(LOG, level=logging.ERROR)
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


def _has_local_time(value: Any) -> bool:
    """Whether there is a datetime without a time zone somewhere in it."""
    if isinstance(value, datetime.datetime):
        return value.tzinfo is None
    try:
        plain = msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE)
    except (TypeError, ValueError):
        return False
    parts = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    return any(map(_has_local_time, parts))


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
