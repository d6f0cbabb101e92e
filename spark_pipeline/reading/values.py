"""Values of events as structs of Spark: decoded by a schema, one by one, and what does not fit it is kept aside."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

import msgspec

from pubsub_api.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_BAD = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_PLAIN: dict[str, tuple[Any, str]] = {
    "boolean": (bool, "bool_"),
    "float": (float, "float32"),
    "double": (float, "float64"),
    "string": (str, "string"),
    "binary": (bytes, "binary"),
    "date": (datetime.date, "date32"),
}


class _Kind(NamedTuple):
    """A type of Spark in the two languages that are needed here."""

    python: Any
    """What msgspec decodes to, and refuses everything else."""
    arrow: Any


class ValueDecoder:
    """Decodes msgpack to structs.  Fields that a value lacks are null, those that the schema lacks are left out; a
    number that a field cannot hold, or another type than it has, makes the value a bad one.  Raises UsageError for a
    schema with types that no value can have."""

    def __init__(self, schema: DataType) -> None:
        self._kind = _kind(schema, "fields")
        self._decode = msgspec.msgpack.Decoder(self._kind.python | None).decode

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Of each value the struct, and the bytes where it does not fit; both are null where there is no value."""
        import pyarrow as pa  # noqa: PLC0415

        decoded: list[Any] = []
        bad: list[bytes | None] = []
        for value in values.to_pylist():
            try:
                decoded.append(None if value is None else self._decode(value))
                bad.append(None)
            except _BAD:
                decoded.append(None)
                bad.append(value)
        return pa.array(decoded, self._kind.arrow), pa.array(bad, pa.binary())


def _kind(given: DataType, path: str) -> _Kind:
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql import types  # noqa: PLC0415

    name = given.simpleString()
    if name in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[name] - 1)
        return _Kind(Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)], getattr(pa, f"int{_INTEGER_BITS[name]}")())
    if name in _PLAIN:
        python, arrow = _PLAIN[name]
        return _Kind(python, getattr(pa, arrow)())
    if isinstance(given, types.TimestampType):
        return _Kind(Annotated[datetime.datetime, msgspec.Meta(tz=True)], pa.timestamp("us", tz="UTC"))
    if isinstance(given, types.ArrayType) and given.containsNull:
        element = _kind(given.elementType, f"{path}[]")
        return _Kind(list[element.python | None], pa.list_(element.arrow))  # type: ignore[name-defined]
    if isinstance(given, types.MapType) and isinstance(given.keyType, types.StringType) and given.valueContainsNull:
        element = _kind(given.valueType, f"{path}[]")
        return _Kind(dict[str, element.python | None], pa.map_(pa.string(), element.arrow))  # type: ignore[name-defined]
    if isinstance(given, types.StructType) and given.fields:
        return _struct(given, path)
    raise UsageError(f"value_schema: {path} is {name}, and values cannot be decoded to that")


def _struct(given: StructType, path: str) -> _Kind:
    import pyarrow as pa  # noqa: PLC0415

    kinds = {field.name: _kind(field.dataType, f"{path}.{field.name}") for field in given.fields}
    if len(kinds) < len(given.fields) or not all(field.nullable for field in given.fields):
        raise UsageError(f"value_schema: {path} names a field twice, or says NOT NULL, which no log can promise")
    python = TypedDict("Value", {name: kind.python | None for name, kind in kinds.items()}, total=False)  # type: ignore[misc]
    return _Kind(python, pa.struct([(name, kind.arrow) for name, kind in kinds.items()]))
