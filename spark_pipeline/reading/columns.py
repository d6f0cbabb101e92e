"""The columns of a read: those of an event that were asked for, and those that are made from them.

Beside the columns of `spark_pipeline.schema` there are, when they are named: ``event_time`` and ``append_time``, the
two times as timestamps of Spark, fit for watermarks; and with a schema for the values, ``fields``, the value as a
struct, and ``bad_value``, the bytes of a value that the schema does not fit.

Spark does not tell a source written in Python which columns a query uses.  So they are an option of the read, or the
schema that the reader is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_pipeline.errors import SchemaMismatch
from spark_pipeline.reading.values import ValueDecoder
from spark_pipeline.schema import EVENT_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FIELDS, BAD_VALUE = "fields", "bad_value"
TIMES = {"event_time": "timestamp", "append_time": "appended_ns"}
"""Timestamp of Spark -> the column in nanoseconds that it is made from."""
NAMES = (*EVENT_COLUMNS, *TIMES, FIELDS, BAD_VALUE)
_MADE_FROM = {**TIMES, FIELDS: "value", BAD_VALUE: "value"}
_TYPES = {**EVENT_COLUMNS, **dict.fromkeys(TIMES, "timestamp"), BAD_VALUE: "binary"}


def schema_of(names: Sequence[str], value_schema: str) -> str:
    """The schema of a read, as Spark writes one; ``value_schema`` is what ``fields`` consists of."""
    types = {**_TYPES, FIELDS: f"struct<{value_schema}>"}
    return ", ".join(f"`{name}` {types[name]}" for name in names)


class ReadColumns:
    """What a read gives of each event.  Travels to the workers.  Raises SchemaMismatch, UsageError."""

    def __init__(self, schema: StructType) -> None:
        self.names = schema.names
        self._value_type = None
        for field in schema.fields:
            wanted = _TYPES.get(field.name, "struct")
            given = field.dataType.simpleString()
            if field.name not in NAMES or self.names.count(field.name) > 1:
                raise SchemaMismatch(f"a read has no column {field.name!r}, or it is named twice: {', '.join(NAMES)}")
            if given != wanted and not (field.name == FIELDS and given.startswith("struct<")):
                raise SchemaMismatch(f"column {field.name!r} is {wanted}, and was asked for as {given}")
            if field.name == FIELDS:
                self._value_type = field.dataType
                ValueDecoder(field.dataType)  # a type that no value can be decoded to is refused before Spark runs
        if BAD_VALUE in self.names and self._value_type is None:
            raise SchemaMismatch(f"the column {BAD_VALUE!r} is what does not fit {FIELDS!r}: name that, too")
        self.stored = list(dict.fromkeys(_MADE_FROM.get(name, name) for name in self.names))
        """The columns of the log that are read for it."""
        self._decoder: ValueDecoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None}

    def make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch, which has at least the columns ``stored``, with these columns."""
        if self.names == self.stored:
            return batch.select(self.names)
        import pyarrow as pa  # noqa: PLC0415

        made: dict[str, Any] = {}
        if self._value_type is not None:
            if self._decoder is None:
                self._decoder = ValueDecoder(self._value_type)
            made[FIELDS], made[BAD_VALUE] = self._decoder.decode(batch.column("value"))
        for name, source in TIMES.items():
            if name in self.names:
                made[name] = _timestamps(batch.column(source))
        columns = [made[name] if name in made else batch.column(name) for name in self.names]
        return pa.RecordBatch.from_arrays(columns, names=self.names)


def _timestamps(nanoseconds: pa.Array) -> pa.Array:
    """Spark counts microseconds."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.divide(nanoseconds, 1000).cast(pa.timestamp("us", tz="UTC"))
