"""Replay: events that were published once go onto the bus again, in the order of their time, as fast as asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from pubsub_api.core.events import Event
from pubsub_api.errors import UsageError
from spark_pipeline.schema import STREAM, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("timestamp", "guid", "topic", "seq")
"""Time, then what makes the order total, so that a replay can go on exactly where it stopped."""

Wait = Callable[[float], None]
_decode = msgspec.msgpack.Decoder().decode


class ReplayPosition(msgspec.Struct, frozen=True, order=True):
    """The place of an event in a replay.  Kept as JSON, so the publisher is written in hexadecimal, which sorts
    alike."""

    timestamp: int
    guid: str
    topic: str
    seq: int


@dataclasses.dataclass(frozen=True)
class ReplaySelection:
    """Which events are replayed; a bound that is None does not bind.  Times are event times in nanoseconds, versions
    those of the database.  The first is included, the last is not."""

    time_from_ns: int | None = None
    time_to_ns: int | None = None
    version_from: int | None = None
    version_to: int | None = None
    after: ReplayPosition | None = None
    """Go on behind this place."""


def select(events: DataFrame, selection: ReplaySelection) -> DataFrame:
    """The events to replay, in order.  What could not be decoded when it was recorded cannot be replayed: it is left
    out, and `count_undecodable` says how many those are.  Raises SchemaMismatch."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    require_columns(events, (*ORDER, "table", "key", "action", "value", "version"))
    chosen = events.where(F.col("table").isNotNull()).dropDuplicates([*STREAM, "seq"])
    for column, first, last in (
        (F.col("timestamp"), selection.time_from_ns, selection.time_to_ns),
        (F.col("version"), selection.version_from, selection.version_to),
    ):
        chosen = chosen if first is None else chosen.where(column >= first)
        chosen = chosen if last is None else chosen.where(column < last)
    if selection.after is not None:
        after = selection.after
        reached = F.struct(
            F.lit(after.timestamp).cast("bigint"), F.lit(bytes.fromhex(after.guid)), F.lit(after.topic),
            F.lit(after.seq).cast("bigint"),
        )  # fmt: skip

        chosen = chosen.where(F.struct(*ORDER) > reached)
    return chosen.orderBy(*ORDER)


def count_undecodable(events: DataFrame) -> int:
    """Events whose content could not be read when they were recorded."""
    require_columns(events, ("table",))
    return events.where(events["table"].isNull()).count()


def paced(
    rows: Iterator[Any],
    *,
    speed: float,
    topic_prefix: str = "",
    wait: Wait = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[ReplayPosition, Event]]:
    """Rows as events, each when it is due.

    ``speed`` 1 keeps the distances in time, 10 is ten times as fast, 0 does not wait.  ``topic_prefix`` is put in front
    of every topic, as levels of its own.  Versions stay, so a cache takes only what is newer than what it has; times
    are given anew by the publisher.  Raises UsageError.
    """
    if speed < 0:
        raise UsageError(f"a replay cannot run backwards: speed {speed}")
    began, first = clock(), None
    for row in rows:
        first = row["timestamp"] if first is None else first
        if speed:
            ahead_s = (row["timestamp"] - first) / 1e9 / speed - (clock() - began)
            if ahead_s > 0:
                wait(ahead_s)
        position = ReplayPosition(row["timestamp"], bytes(row["guid"]).hex(), row["topic"], row["seq"])
        topic = f"{topic_prefix}/{row['topic']}" if topic_prefix else row["topic"]
        value = None if row["value"] is None else _decode(row["value"])
        yield (
            position,
            Event(
                topic=topic,
                table=row["table"],
                key=row["key"],
                action=row["action"],
                value=value,
                version=row["version"],
            ),
        )
