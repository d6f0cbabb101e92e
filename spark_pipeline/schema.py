"""The columns of an event, the same in the log's sealed segments, in the lake, and in every DataFrame of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_pipeline.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT_COLUMNS = {
    "shard": "int",
    "offset": "bigint",
    "guid": "binary",
    "topic": "string",
    "seq": "bigint",
    "table": "string",
    "key": "string",
    "action": "string",
    "value": "binary",
    "version": "bigint",
    "timestamp": "bigint",
    "appended_ns": "bigint",
}
"""Name -> Spark type.  ``value`` is msgpack; ``timestamp`` is the hybrid logical clock at publishing and
``appended_ns`` the store's wall clock, both in nanoseconds."""

EVENT_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in EVENT_COLUMNS.items())

LOG = "log"
"""Column of a table of the lake: the identity of the log that ``shard`` and ``offset`` belong to.  Several logs may go
into one table."""

STREAM = ("guid", "topic")
"""What names a stream."""
OBJECT = ("table", "key")
"""What names an object."""
AGE_ORDER = ("version", "timestamp", "guid", "seq")
"""Which of two changes of an object is newer, decided by the first of these that differs.  Total: a stream never has
two events of one number."""


def require_columns(events: DataFrame, names: Iterable[str]) -> None:
    """Raises SchemaMismatch when a column is missing or has another type than an event's."""
    present = dict(events.dtypes)
    for name in names:
        wanted = EVENT_COLUMNS[name]
        if name not in present:
            raise SchemaMismatch(f"column {name!r} is missing; there are: {', '.join(present)}")
        if present[name] != wanted:
            raise SchemaMismatch(f"column {name!r} is {present[name]}, and must be {wanted}")
