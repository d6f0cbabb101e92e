"""Pages about stored events: groups, durability services, the log."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

from heliograph.commands.history.durability import find_clashes, problems_of
from heliograph.commands.history.group import lag_text
from heliograph.console.layout import ConsolePage, absent, action_links, section, source_line
from heliograph.console.markup import Markup, command, joined, known, link, seconds, tag
from heliograph.console.sources import ConsoleSources, LogView, count_missing
from heliograph.console.tables import Cell, Column, Query, RowsView, RowView, cell, filter_form, fixed_table, table

if TYPE_CHECKING:
    from durability_service.protocol import ServiceStatus
    from durable_log.log_api import StreamState
    from shared_subscriptions.groups import GroupView

GROUP_COLUMNS = (
    Column("name", "Group"), Column("filter", "Subscribe to"), Column("state", "State"), Column("lag", "Lag", True),
    Column("oldest", "Oldest unacknowledged", True), Column("members", "Members", True),
    Column("redelivered", "Redelivered", True), Column("dead", "Dead letters", True),
    Column("lost", "Missing or expired", True), Column("leader", "Leader"),
)  # fmt: skip
PARTITION_COLUMNS = (
    Column("partition", "Partition"), Column("status", "Status"), Column("member", "Member"),
    Column("low", "Done up to", True), Column("end", "End", True), Column("lag", "Lag", True),
    Column("oldest", "Oldest", True), Column("retrying", "Retrying", True), Column("redelivered", "Redelivered", True),
)  # fmt: skip
SPACE_COLUMNS = (
    Column("service", "Service"), Column("role", "Role"), Column("space", "Name-space"), Column("state", "State"),
    Column("master", "Master"), Column("epoch", "Epoch"), Column("samples", "Samples", True),
    Column("lag", "Not on disk yet", True), Column("trouble", "Trouble"),
)  # fmt: skip
SHARD_COLUMNS = (
    Column("shard", "Shard"), Column("start", "Start", True), Column("sealed", "Sealed up to", True),
    Column("end", "End", True), Column("bytes", "Bytes not sealed", True), Column("segments", "Segments", True),
    Column("sealed_bytes", "Sealed bytes", True),
)  # fmt: skip
STREAM_COLUMNS = (
    Column("topic", "Topic"), Column("shard", "Shard", True), Column("publisher", "Publisher"),
    Column("last", "Last number", True), Column("missing", "Missing", True), Column("ranges", "Which"),
)  # fmt: skip
GROUP_ACTIONS = ("pause", "resume", "drain", "redrive", "destroy")
_NO_GROUP = joined(("No group is declared. Next: ", command("heliograph group declare billing 'tenant-7/#' --log URL")))


def worst_age(view: GroupView) -> float | None:
    """The age of the oldest event of a group that is not acknowledged; None without one."""
    return max((one.oldest_s for one in view.streams if one.oldest_s is not None), default=None)


def groups(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of all groups, those with the largest lag first."""
    sample = sources.log.sample
    found = sample.value
    if found is None:
        return ConsolePage("Groups", {"groups": joined((absent("log", sample),))})
    rows = [_group_row(one, found) for one in sorted(found.groups, key=lambda one: (-one.lag, one.name))]
    made = table(path, query, GROUP_COLUMNS, rows, caption="Groups", empty=_NO_GROUP)
    left_out = tag("p", f"{found.groups_left_out} more groups are not shown.") if found.groups_left_out else None
    parts = {"groups": joined((source_line(sample), made, left_out)), "letters": _letters(found)}
    return ConsolePage("Groups", parts, filter_form(path, query))


def _group_row(view: GroupView, found: LogView) -> RowView:
    status = view.status
    subscribe = f"${view.mode}/{view.name}/{view.topic_filter}"
    oldest = worst_age(view)
    return RowView(
        [
            Cell(link(f"/group?name={urllib.parse.quote(view.name)}", view.name), view.name),
            cell(subscribe),
            cell(f"{view.wish}, drained" if view.is_drained else view.wish),
            cell(view.lag, lag_text(view)),
            Cell("none" if oldest is None else seconds(oldest), oldest or 0.0),
            # Only a leader knows the members.
            cell(len(status.members) if status is not None and view.leader else None),
            cell(sum(one.redelivered for one in view.streams)),
            cell(found.dead_letters.get(view.name, 0)),
            cell(view.missing + view.expired),
            cell(view.leader or "no leader"),
        ]
    )


def _letters(found: LogView, group: str | None = None) -> Markup:
    columns = (
        Column("group", "Group"), Column("offset", "Offset", True), Column("object", "Object"),
        Column("topic", "Topic"), Column("attempts", "Attempts", True), Column("reason", "Reason"),
    )  # fmt: skip
    rows = [
        RowView([cell(name), cell(one.offset), cell(f"{one.event.table}/{one.event.key}"), cell(one.event.topic),
                 cell(one.attempts), cell(one.reason)])
        for name, one in found.newest_letters if group in (None, name)
    ]  # fmt: skip
    made = fixed_table(
        columns, rows, caption="Newest dead letters", empty="There is no dead letter that was not redriven."
    )
    return section("Dead letters", made)


def group(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of one group: its partitions and its dead letters."""
    sample = sources.log.sample
    name = query.get("name", "")
    title = f"Group {name}"
    found = sample.value
    if found is None:
        return ConsolePage(title, {"group": joined((absent("log", sample),))})
    view = next((one for one in found.groups if one.name == name), None)
    if view is None:
        gone = tag("p", f"There is no group {name!r}. ", link("/groups", "All groups"))
        return ConsolePage(title, {"group": gone})
    rows = [
        RowView([
            cell(one.stream), cell(one.status), cell(one.owner or "none"), cell(one.low), cell(one.end),
            cell(one.lag, lag_text(one)),
            Cell("none" if one.oldest_s is None else seconds(one.oldest_s), one.oldest_s or 0.0),
            cell(one.retrying), cell(one.redelivered),
        ])
        for one in sorted(view.streams, key=lambda one: -one.lag)
    ]  # fmt: skip
    made = table(path, query, PARTITION_COLUMNS, rows, caption="Partitions", empty="Nothing was delivered yet.")
    heard = "never led" if view.heard_s is None else joined(("a leader was heard ", seconds(view.heard_s), " earlier"))
    summary = tag("p", f"${view.mode}/{view.name}/{view.topic_filter}: {view.wish}, lag {lag_text(view)}. Leader: "
                  f"{view.leader or 'none'}; ", heard)  # fmt: skip
    parts = {"group": joined((summary, source_line(sample), made)), "letters": _letters(found, name)}
    return ConsolePage(title, parts, action_links(sources, GROUP_ACTIONS, name))


def durability(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of durability services: every name-space of every service that answered."""
    sample = sources.durability.sample
    if sample.value is None:
        return ConsolePage("Durability", {"services": joined((absent("durability", sample),))})
    rows = sorted(
        (row for service in sample.value for row in _space_rows(service)), key=lambda row: not row.cells[-1].order
    )
    made = table(path, query, SPACE_COLUMNS, rows, caption="Name-spaces of durability services", empty="None.")
    found = [tag("p", line, class_="state bad") for line in find_clashes(sample.value)]
    parts = {"services": joined((source_line(sample), *found, made))}
    return ConsolePage("Durability", parts, filter_form(path, query))


def _space_rows(service: ServiceStatus) -> list[RowView]:
    return [
        RowView([
            cell(service.node), cell(service.role), cell(space.name),
            cell("complete" if space.is_complete else space.phase.lower()),
            cell((space.master or "none") + ("" if space.is_agreed else " (not agreed)")),
            cell(f"{space.epoch.counter} {space.epoch.master}".strip()), cell(space.samples), cell(service.lag),
            Cell("; ".join(wrong) or "none", "; ".join(wrong)),
        ])
        for space in service.name_spaces
        for wrong in [[*space.conflicts, *space.warnings, *problems_of(service)]]
    ]  # fmt: skip


def log(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of the log: its shards and segments, and its streams, those with holes first."""
    sample = sources.log.sample
    found = sample.value
    if found is None:
        return ConsolePage("Log", {"shards": joined((absent("log", sample),))})
    shards = []
    for one in found.shards:
        sealed = [segment for segment in found.segments if segment.shard == one.shard]
        if one.end:
            shards.append(RowView([
                cell(one.shard), cell(one.start), cell(one.sealed), cell(one.end), cell(one.bytes), cell(len(sealed)),
                cell(sum(segment.bytes for segment in sealed)),
            ]))  # fmt: skip
    empty = joined(("Nothing was ever appended. Next: ", command("heliograph log record '#' --log URL --bus URL")))
    events = sum(one.end - one.start for one in found.shards)
    summary = tag("p", known(events), f" events in {len(found.shards)} shards, {len(shards)} of them used; the log "
                  f"{found.identity}.")  # fmt: skip
    streams = sorted(found.streams, key=lambda pair: (-count_missing(pair[1]), pair[1].topic))
    rows = RowsView(streams, _stream_row)
    made = table(path, query, STREAM_COLUMNS, rows, caption="Streams, with numbers that are missing", empty=empty)
    seal = action_links(sources, ("seal",), found.identity)
    shard_table = fixed_table(SHARD_COLUMNS, shards, caption="Shards", empty=empty)
    parts = {
        "shards": joined((summary, seal, source_line(sample), shard_table)),
        "streams": section("Streams", made),
    }
    return ConsolePage("Log", parts, filter_form(path, query))


def _stream_row(found: tuple[int, StreamState]) -> RowView:
    shard, one = found
    ranges = ", ".join(f"{low} to {high}" for low, high in one.missing[:10])
    return RowView([
        cell(one.topic), cell(shard), cell(one.guid.hex()), cell(one.last), cell(count_missing(one)),
        cell(ranges or "none"),
    ])  # fmt: skip
