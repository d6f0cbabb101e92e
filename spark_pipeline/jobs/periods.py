"""An audit over time: what was recorded, and what was wrong, in each of a bounded number of periods.

An event belongs to the period in which it was recorded, by the store's clock.  What is lost was never recorded: it
counts where the event with the next number of its stream was.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from spark_pipeline.jobs import audit
from spark_pipeline.schema import STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERIODS_MAX = 120
_DAY_S = 86_400
_STEPS_S = (1, 10, 60, 300, 900, 3600, 6 * 3600, _DAY_S, 7 * _DAY_S, 30 * _DAY_S, 365 * _DAY_S)
_QUANTILES = (0.5, 0.99)
_KINDS = ("duplicated", "reordered", "undecodable")
_1970 = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class MissingNumbers(NamedTuple):
    """Numbers of a stream that are missing."""

    guid: bytes
    topic: str
    first: int
    last: int


class PeriodReport(msgspec.Struct, frozen=True):
    """What was recorded in a period."""

    start: str
    """When it begins, in UTC."""
    events: int
    lost: int
    duplicated: int
    """Copies, in the period of the last one of the same number."""
    reordered: int
    undecodable: int
    p50_ms: float | None
    """Half of the events took at most so long from publishing to recording; None when there were none."""
    p99_ms: float | None


def step_s(first_ns: int, last_ns: int) -> int:
    """The length of a period: the shortest with which there are at most `PERIODS_MAX`."""
    for step in _STEPS_S:
        if last_ns // (step * 10**9) - first_ns // (step * 10**9) < PERIODS_MAX:
            return step
    return (last_ns - first_ns) // (10**9 * (PERIODS_MAX - 1)) + 1


def over_time(
    events: DataFrame, lost: Sequence[MissingNumbers] = (), wrong: Collection[str] = _KINDS
) -> tuple[int, list[PeriodReport]]:
    """How many seconds a period has, and all periods from the first event to the last, in order; empty without events.

    Reads the events once more for each kind in ``wrong``: of what is known to be right, the count is 0.  Blocks.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    ends = events.agg(F.min("appended_ns"), F.max("appended_ns")).collect()[0]
    if ends[0] is None:
        return _STEPS_S[0], []
    step = step_s(*ends)
    first, last = (at // (step * 10**9) for at in ends)
    events = events.withColumn("period", F.expr(f"appended_ns div {step * 10**9}L"))
    counted = {row["period"]: row for row in audit.delays(events, ["period"], _QUANTILES).collect()}
    found = {
        "lost": _lost(events, lost),
        "duplicated": _counts(_copies(events)) if "duplicated" in wrong else {},
        "reordered": _counts(audit.late_events(events)) if "reordered" in wrong else {},
        "undecodable": _counts(events.where("table is null")) if "undecodable" in wrong else {},
    }
    periods = []
    for number in range(first, last + 1):
        row = counted.get(number)
        periods.append(
            PeriodReport(
                start=(_1970 + datetime.timedelta(seconds=number * step)).isoformat(sep=" "),
                events=row["events"] if row else 0,
                p50_ms=row["p50_ms"] if row else None,
                p99_ms=row["p99_ms"] if row else None,
                **{kind: counts.get(number, 0) for kind, counts in found.items()},
            )
        )
    return step, periods


def _counts(rows: DataFrame) -> dict[int, int]:
    """Period -> rows."""
    return {row["period"]: row["count"] for row in rows.groupBy("period").count().collect()}


def _copies(events: DataFrame) -> DataFrame:
    """A row for each event but one of a number that came more than once."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    numbers = events.groupBy(*STREAM, "seq").agg(F.count("*").alias("times"), F.max("period").alias("period"))
    return numbers.where("times > 1").select("period", F.explode(F.expr("sequence(2, times)")))


def _lost(events: DataFrame, lost: Sequence[MissingNumbers]) -> dict[int, int]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    if not lost:
        return {}
    rows = [(one.guid, one.topic, one.last + 1, one.last - one.first + 1) for one in lost]
    behind = events.sparkSession.createDataFrame(rows, "guid binary, topic string, seq bigint, missing bigint")
    found = events.join(F.broadcast(behind), [*STREAM, "seq"])
    once = found.groupBy(*STREAM, "seq", "missing").agg(F.min("period").alias("period"))
    return {row["period"]: row["lost"] for row in once.groupBy("period").agg(F.sum("missing").alias("lost")).collect()}
