"""Values decoded by a schema: what fits is a struct, what does not is kept as it is, and nothing stops a read."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

import msgspec
import pyarrow
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

from pubsub_api.errors import UsageError
from spark_pipeline.errors import SchemaMismatch
from spark_pipeline.reading.columns import ReadColumns
from spark_pipeline.reading.values import ValueDecoder

KINDS = {
    "flag": "boolean", "tiny": "byte", "small": "short", "count": "integer", "long one": "long", "ratio": "double",
    "name": "string", "raw": "binary", "day": "date", "at": "timestamp",
}  # fmt: skip
SCHEMA = StructType()
for field, kind in KINDS.items():
    SCHEMA.add(field, kind)
SCHEMA.add("tags", ArrayType(StringType()))
SCHEMA.add("labels", MapType(StringType(), StringType()))
SCHEMA.add("inner", StructType().add("x", "integer"))
NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.timezone.utc)
WHOLE: dict[str, Any] = {
    "flag": True, "tiny": -128, "small": 32_767, "count": -(2**31), "long one": 2**63 - 1, "ratio": 3, "name": "é",
    "raw": b"\x00", "day": datetime.date(2026, 5, 1), "at": NOW, "tags": ["a", None], "labels": {"a": None, "b": "c"},
    "inner": {"x": 1},
}  # fmt: skip


def decode(*values: Any, schema: Any = SCHEMA) -> tuple[list[Any], list[Any]]:
    encoded = [
        value if value is None or isinstance(value, bytes) else msgspec.msgpack.encode(value) for value in values
    ]
    decoded, bad = ValueDecoder(schema).decode(pyarrow.array(encoded, pyarrow.binary()))
    return decoded.to_pylist(), bad.to_pylist()


def test_a_value_that_fits_is_a_struct_and_fields_may_be_missing_or_more() -> None:
    nothing = dict.fromkeys(WHOLE)
    decoded, bad = decode(WHOLE, {}, {"name": "x", "another": [1]}, None, b"\xc0")
    whole = WHOLE | {"labels": [("a", None), ("b", "c")], "ratio": 3.0}
    assert decoded == [whole, nothing, nothing | {"name": "x"}, None, None]
    assert bad == [None] * 5


@pytest.mark.parametrize(
    "wrong",
    [{"tiny": 128}, {"small": -32_769}, {"count": 2**31}, {"long one": 2**63}, {"name": 1}, {"flag": 1}, {"ratio": "1"},
     {"tags": "a"}, {"labels": {"a": 1}}, {"inner": []}, {"inner": {"x": "y"}}, {"day": "May"}, {"at": 5}, [1], "x",
     b"\xc1", b"", b"\xc0\xc0"],
    ids=repr,
)  # fmt: skip
def test_a_value_that_does_not_fit_is_kept_aside(wrong: Any) -> None:
    decoded, bad = decode({"name": "before"}, wrong, {"name": "behind"})
    assert [row and row["name"] for row in decoded] == ["before", None, "behind"]
    assert bad == [None, wrong if isinstance(wrong, bytes) else msgspec.msgpack.encode(wrong), None]


@given(st.lists(st.binary(max_size=20) | st.none()))
def test_no_value_stops_a_read(values: list[bytes | None]) -> None:
    decoded, bad = decode(*values)
    assert len(decoded) == len(bad) == len(values)
    assert all(kept is None or kept == value for kept, value in zip(bad, values, strict=True))


@pytest.mark.parametrize(
    "schema",
    [StructType().add("a", DecimalType()), StructType(), StructType().add("a", "integer", nullable=False),
     StructType().add("a", MapType(spark_types.IntegerType(), StringType()))],
)  # fmt: skip
def test_a_schema_that_no_value_can_have_is_refused(schema: StructType) -> None:
    with pytest.raises(UsageError, match="value_schema: "):
        ValueDecoder(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (StructType().add("a", "integer"), "a read has no column 'a'"),
        (StructType().add("seq", "long").add("seq", "long"), "or it is named twice"),
        (StructType().add("event_time", "long"), "'event_time' is timestamp, and was asked for as bigint"),
        (StructType().add("fields", "string"), "'fields' is struct, and was asked for as string"),
        (StructType().add("bad_value", "binary"), "what does not fit 'fields'"),
    ],
)
def test_columns_that_a_read_does_not_have_are_refused(schema: StructType, reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason):
        ReadColumns(schema)


def test_only_what_is_needed_is_read_from_the_log() -> None:
    columns = ReadColumns(StructType().add("append_time", "timestamp").add("seq", "long").add("fields", SCHEMA))
    assert columns.stored == ["appended_ns", "seq", "value"]
