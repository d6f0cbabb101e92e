"""The pages of topics and of passing events."""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.console.layout import ConsolePage, absent, source_line
from heliograph.console.live.tail import EVENTS_KEPT, EVENTS_PER_S, TailEvent
from heliograph.console.markup import Markup, command, joined, known, link, tag
from heliograph.console.sources import ConsoleSources, LogView, count_missing
from heliograph.console.tables import Cell, Column, Query, RowsView, RowView, cell, filter_form, fixed_table, table
from heliograph.output import clock_text, counted
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import HeliographError, InvalidTopic

if TYPE_CHECKING:
    from nb_api.fleet import FleetMember

TOPIC_COLUMNS = (
    Column("topic", "Topic"), Column("publishers", "Publishers", True), Column("rate", "Recorded/s", True),
    Column("missing", "Missing", True), Column("groups", "Groups that follow it"),
    Column("copies", "Copies that follow it", True),
)  # fmt: skip
TAIL_COLUMNS = (
    Column("at", "Stamped (UTC)"), Column("topic", "Topic"), Column("action", "Action"), Column("object", "Object"),
    Column("version", "Version", True), Column("value", "Value"),
)  # fmt: skip
_NAMED_MAX = 5


class _TopicSum(NamedTuple):
    topic: str
    publishers: int
    rate: float | None
    missing: int


def topics(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of the topics of the log, the busiest first."""
    sample = sources.log.sample
    found = sample.value
    if found is None:
        return ConsolePage("Topics", {"topics": joined((absent("log", sample),))})
    sums = sorted(_sums(found), key=lambda one: (-(one.rate or 0), one.topic))
    groups = {one.name: FilterSet([one.topic_filter]) for one in found.groups}
    database = sources.database.sample
    copies = _filters(database.value.fleet.members) if database.value is not None else None
    rows = RowsView(sums, lambda one: _topic_row(one, groups, copies))
    empty = joined(("No topic was recorded. Next: ", command("heliograph log record '#' --log URL --bus URL")))
    made = table(path, query, TOPIC_COLUMNS, rows, caption="Topics in the log", empty=empty)
    return ConsolePage("Topics", {"topics": joined((source_line(sample), made))}, filter_form(path, query))


def _sums(found: LogView) -> list[_TopicSum]:
    publishers, missing = Counter[str](), Counter[str]()
    for _, stream in found.streams:
        publishers[stream.topic] += 1
        missing[stream.topic] += count_missing(stream)
    return [_TopicSum(name, count, found.rates.get(name), missing[name]) for name, count in publishers.items()]


def _filters(members: Sequence[FleetMember]) -> list[FilterSet]:
    """The topic filters of each copy that reports them."""
    filters = []
    for member in members:
        for copy in member.report.copies if member.report is not None else ():
            try:
                filters.append(FilterSet(copy.topics))
            except InvalidTopic:  # any program that can write to the database can write a report
                continue
    return filters


def _topic_row(one: _TopicSum, groups: Mapping[str, FilterSet], copies: list[FilterSet] | None) -> RowView:
    names = [name for name, filters in groups.items() if filters.match(one.topic)]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return RowView([
        cell(one.topic), cell(one.publishers), cell(one.rate, None if one.rate is None else f"{one.rate:,.1f}"),
        cell(one.missing), cell(", ".join(names[:_NAMED_MAX]) + more or "none"),
        cell(None if copies is None else sum(filters.match(one.topic) for filters in copies)),
    ])  # fmt: skip


def tail(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of events as they pass; the parameter ``topics`` is their filter."""
    wanted = query.get("topics", "")
    form = tag(
        "form",
        tag("label", "Topics, as in tenant-7/# ",
            tag("input", type="search", name="topics", value=wanted, required=True)),
        tag("button", "Show", type="submit"),
        method="get", action=path, class_="filter", role="search",
    )  # fmt: skip
    if not wanted or sources.tails is None:
        hint = tag("p", "The console listens while this page is open. In a terminal: ",
                   command("heliograph subscribe 'tenant-7/#'"), class_="empty")  # fmt: skip
        return ConsolePage("Tail", {"events": hint}, form)
    try:
        found = sources.tails.get(wanted)
    except HeliographError as error:
        return ConsolePage("Tail", {"events": tag("p", f"There is no tail: {error}", class_="state bad")}, form)
    rows = [_tail_row(one) for one in found.newest()]
    lost = (
        joined((", ", tag("strong", counted(found.resyncs, "resync")), ": some were lost")) if found.resyncs else None
    )
    summary = tag(
        "p", known(found.passed), f" events of {wanted} have passed since the page was opened, ",
        tag("strong", f"{found.left_out:,} of them are not shown"),
        f" (more than {EVENTS_PER_S} in a second, or large)",
        f", {found.undecodable:,} could not be read" if found.undecodable else None, lost, ".",
    )  # fmt: skip
    made = fixed_table(TAIL_COLUMNS, rows, caption=f"The newest events, {EVENTS_KEPT} at most",
                       empty="Nothing has passed yet.")  # fmt: skip
    return ConsolePage("Tail", {"events": joined((summary, made))}, form)


def _tail_row(one: TailEvent) -> RowView:
    value: Markup | str = tag("small", "not shown") if one.value is None else one.value
    name = f"{one.table}/{one.key}"
    return RowView([
        cell(clock_text(one.timestamp)), cell(one.topic), cell(one.action),
        Cell(link(f"/search?object={urllib.parse.quote(name)}", name), name), cell(one.version, str(one.version)),
        Cell(value, ""),
    ])  # fmt: skip
