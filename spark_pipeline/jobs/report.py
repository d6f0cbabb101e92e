"""The result of an audit, gathered from its DataFrames, as plain data and as one HTML page that needs nothing else."""

from __future__ import annotations

import datetime
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from spark_pipeline.jobs import audit, charts
from spark_pipeline.jobs.periods import MissingNumbers, PeriodReport, over_time
from spark_pipeline.jobs.stream_heads import Expected, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGES_MAX = 1000
"""Ranges listed per kind; the counts are exact however many there are."""


class StreamReport(msgspec.Struct, frozen=True):
    publisher: str
    topic: str
    events: int
    first: int | None
    last: int | None
    lost: int
    not_kept: int
    """Numbers that were skipped on purpose, or whose events retention or compaction has removed."""
    duplicated: int
    reordered: int


class RangeReport(msgspec.Struct, frozen=True):
    kind: str
    """``lost`` or ``duplicated``."""
    publisher: str
    topic: str
    first: int
    last: int


class AuditReport(msgspec.Struct, frozen=True):
    source: str
    """What was audited: a log or a table, and its topics."""
    made_at: str
    """When, in UTC."""
    streams: list[StreamReport]
    ranges: list[RangeReport]
    cut: list[str]
    """Kinds of ranges of which only the first ``RANGES_MAX`` are listed."""
    delays_ms: dict[str, float]
    """Quantile -> milliseconds from publishing to recording."""
    undecodable: int
    period_s: int
    """How long a period is."""
    periods: list[PeriodReport]
    """From the first event to the last one.  What is lost is in them as far as it is listed in ``ranges`` and the event
    after it is there."""

    @property
    def is_clean(self) -> bool:
        """Nothing lost, doubled, out of order or unreadable."""
        return not self.undecodable and not any(one.lost or one.duplicated or one.reordered for one in self.streams)

    def total(self, what: str) -> int:
        """The sum of a count over all streams."""
        return sum(getattr(one, what) for one in self.streams)


def audit_report(
    events: DataFrame, expected: Mapping[Stream, Expected] | None = None, *, source: str = "events"
) -> AuditReport:
    """Run the audit.  Ranges are worked out only for streams that the counts show to be wrong.  Blocks."""
    heads = None if expected is None else _frame_of(events.sparkSession, expected)
    counted = audit.count_streams(events, heads).collect()
    late = {(bytes(row["guid"]), row["topic"]): int(row["reordered"]) for row in audit.reordered(events).collect()}
    streams = [
        StreamReport(
            publisher=bytes(row["guid"]).hex(), topic=row["topic"], events=int(row["events"]), first=row["first"],
            last=row["last"], lost=int(row["lost"]), not_kept=int(row["not_kept"]), duplicated=int(row["duplicated"]),
            reordered=late.get((bytes(row["guid"]), row["topic"]), 0),
        )
        for row in counted
    ]  # fmt: skip
    streams.sort(key=lambda one: (-one.lost, -one.duplicated, -one.reordered, one.topic, one.publisher))
    lost, duplicated = _lost(streams, events, heads, expected or {}), list[RangeReport]()
    if any(one.duplicated for one in streams):
        duplicated = _ranges("duplicated", audit.duplicated_ranges(events))
    undecodable = events.where(events["table"].isNull()).count()
    counts = {"undecodable": undecodable} | {
        kind: sum(getattr(one, kind) for one in streams) for kind in ("duplicated", "reordered")
    }
    listed = [MissingNumbers(bytes.fromhex(one.publisher), one.topic, one.first, one.last) for one in lost[:RANGES_MAX]]
    period_s, periods = over_time(events, listed, [kind for kind, count in counts.items() if count])
    delays = audit.delays(events).collect()
    found = delays[0].asDict() if delays else {}
    found.pop("events", None)
    return AuditReport(
        source=source,
        made_at=datetime.datetime.now(datetime.timezone.utc).isoformat(sep=" ", timespec="seconds"),
        streams=streams,
        ranges=lost[:RANGES_MAX] + duplicated[:RANGES_MAX],
        cut=[found[0].kind for found in (lost, duplicated) if len(found) > RANGES_MAX],
        delays_ms={name: float(value) for name, value in found.items() if value is not None},
        undecodable=undecodable,
        period_s=period_s,
        periods=periods,
    )


def _frame_of(spark: SparkSession, expected: Mapping[Stream, Expected]) -> DataFrame:
    rows = [
        (bytes.fromhex(publisher), topic, one.first, one.last, one.lost_count)
        for (publisher, topic), one in expected.items()
    ]
    return spark.createDataFrame(rows, "guid binary, topic string, first bigint, last bigint, missing bigint")


def _lost(
    streams: Sequence[StreamReport], events: DataFrame, heads: DataFrame | None, expected: Mapping[Stream, Expected]
) -> list[RangeReport]:
    """Ranges that are lost, one more than are listed when there are more."""
    wrong = {(one.publisher, one.topic) for one in streams if one.lost}
    told = [
        RangeReport("lost", *stream, first, last)
        for stream, one in sorted(expected.items())
        if stream in wrong
        for first, last in one.lost or ()
    ]
    is_told = {stream for stream, one in expected.items() if one.lost is not None}
    if wrong - is_told:
        told += _ranges("lost", audit.lost_ranges(events, heads))
    return told[: RANGES_MAX + 1]


def _ranges(kind: str, found: DataFrame) -> list[RangeReport]:
    return [
        RangeReport(kind, bytes(row["guid"]).hex(), row["topic"], int(row["first"]), int(row["last"]))
        for row in found.limit(RANGES_MAX + 1).collect()
    ]


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #222; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }}
td.bad {{ color: #b00; font-weight: 600; }}
.verdict {{ font-size: 1.3rem; }}
rect {{ fill: #3b6ea5; }} rect.series0 {{ fill: #9dbad5; }} rect.series1 {{ fill: #3b6ea5; }}
rect.bad {{ fill: #b00; }} rect.back {{ fill: #f6f6f6; }} figure {{ margin: 1rem 0; }}
text {{ font: 12px system-ui, sans-serif; }}
</style></head><body>
<h1>{title}</h1>
<p>{source}, {made_at} UTC</p>
<p class="verdict">{verdict}</p>
<h2>Over time</h2>{over_time}
<h2>Delay from publishing to recording</h2>{delays}
<h2>Events per topic</h2>{topics}
<h2>Streams</h2>{streams}
<h2>Ranges</h2>{cut}{ranges}
</body></html>
"""


def to_html(report: AuditReport, *, title: str) -> str:
    """One page with the verdict, plots and tables."""
    events_by_topic: dict[str, int] = {}
    for one in report.streams:
        events_by_topic[one.topic] = events_by_topic.get(one.topic, 0) + one.events
    busiest = sorted(events_by_topic.items(), key=lambda item: -item[1])[:20]
    verdict = (
        "Nothing is lost, doubled, out of order or unreadable."
        if report.is_clean
        else f"{report.total('lost'):,} lost, {report.total('duplicated'):,} doubled, "
        f"{report.total('reordered'):,} out of order, {report.undecodable:,} unreadable."
    )
    if report.total("not_kept"):
        verdict += f" {report.total('not_kept'):,} numbers were skipped on purpose, or their events are not kept."
    return _PAGE.format(
        title=html.escape(title),
        source=html.escape(report.source),
        made_at=report.made_at.removesuffix("+00:00"),
        verdict=verdict,
        cut="".join(
            f"<p>Of what is {kind}, only the first {RANGES_MAX:,} ranges are listed.</p>" for kind in report.cut
        ),
        over_time=_over_time(report),
        delays=charts.bars([(name, value, f"{value:,.1f} ms") for name, value in report.delays_ms.items()]),
        topics=charts.bars([(topic, count, f"{count:,}") for topic, count in busiest]),
        streams=_table(StreamReport.__struct_fields__, report.streams, bad=("lost", "duplicated", "reordered")),
        ranges=_table(RangeReport.__struct_fields__, report.ranges) if report.ranges else "<p>None.</p>",
    )


def _over_time(report: AuditReport) -> str:
    """Charts of what was recorded, of how long it took, and of each kind of damage that there is."""
    if not report.periods:
        return "<p>No events.</p>"
    starts = [one.start.removesuffix("+00:00") for one in report.periods]
    delays = [(name, [getattr(one, name) or 0.0 for one in report.periods]) for name in ("p99_ms", "p50_ms")]
    parts = [
        f"<p>Each column is {report.period_s:,} s, by the store's clock, in UTC.</p>",
        charts.timeline("Events", starts, [("events", [one.events for one in report.periods])], bad=False),
        charts.timeline("Milliseconds from publishing to recording, p99 and p50", starts, delays, bad=False),
    ]
    for kind in ("lost", "duplicated", "reordered", "undecodable"):
        counts = [getattr(one, kind) for one in report.periods]
        if any(counts):
            parts.append(charts.timeline(kind.capitalize(), starts, [(kind, counts)], bad=True))
    undated = report.total("lost") - sum(one.lost for one in report.periods)
    if undated:
        parts.append(
            f"<p>{undated:,} lost numbers are not drawn: the event after them is not there, or not listed.</p>"
        )
    return "".join(parts)


def _table(names: Sequence[str], rows: Sequence[Any], bad: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(getattr(row, name), name in bad) for name in names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object, is_damage: bool) -> str:
    shown = f"{value:,}" if isinstance(value, int) else "" if value is None else html.escape(str(value))
    return f'<td class="bad">{shown}</td>' if is_damage and value else f"<td>{shown}</td>"
