"""Pages about members of the fleet: controllers, publishers, subscribers, and one member."""

from __future__ import annotations

import math
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heliograph.console.layout import ConsolePage, absent, action_links, section, source_line
from heliograph.console.markup import Child, Markup, command, joined, known, link, seconds, state, tag
from heliograph.console.sources import ConsoleSources, RegisteredPublisher
from heliograph.console.tables import Cell, Column, Query, RowsView, RowView, cell, filter_form, fixed_table, table

if TYPE_CHECKING:
    from nb_api.fleet import CopyReport, FleetMember

NO_MEMBER = joined((
    "No process reports to this database. Start daemons with --fleet, as in ",
    command("heliograph controller --db sqlite:///tmp/objects.db --fleet"),
    ", or call nb_api.fleet.report() in programs.",
))  # fmt: skip
CONTROLLER_COLUMNS = (
    Column("name", "Member"), Column("state", "State"), Column("role", "Role"), Column("host", "Host"),
    Column("release", "Release"), Column("proved", "Proved up to", True), Column("heard", "Heard up to", True),
    Column("behind", "Changes it lacks", True), Column("queue", "Queue", True), Column("rate", "Events/s", True),
    Column("resyncs", "Resyncs", True), Column("objects", "Objects", True), Column("equal", "Copies compared"),
    Column("seen", "Heard of", True),
)  # fmt: skip
SUBSCRIBER_COLUMNS = (
    Column("name", "Member"), Column("state", "State"), Column("queue", "Queue", True), Column("links", "Links"),
    Column("publishers", "Publishers heard", True), Column("rate", "Received/s", True), Column("gaps", "Gaps", True),
    Column("repaired", "Repaired", True), Column("lost", "Lost", True), Column("refused", "Refused frames", True),
    Column("resyncs", "Resyncs by reason"), Column("seen", "Heard of", True),
)  # fmt: skip
SENDER_COLUMNS = (
    Column("name", "Member"), Column("state", "State"), Column("role", "Role"), Column("host", "Host"),
    Column("published", "Published", True), Column("rate", "Published/s", True),
    Column("failures", "Send failures", True), Column("seen", "Heard of", True),
)  # fmt: skip
DIRECTORY_COLUMNS = (
    Column("name", "Publisher"), Column("address", "Address"), Column("guid", "GUID"),
    Column("renewals", "Renewals", True), Column("unchanged", "Last renewal seen", True),
)  # fmt: skip


def controllers(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of all members, with the position of their copies against the database."""
    sample = sources.database.sample
    found = sample.value
    if found is None:
        return ConsolePage("Controllers", {"members": joined((absent("database", sample),))})
    members, revision = found.fleet.members, found.fleet.revision
    rows = RowsView(members, lambda one: _controller_row(one, found.comparison.get(one.key, "")))
    made = table(path, query, CONTROLLER_COLUMNS, rows, caption="Members of the fleet", empty=NO_MEMBER)
    summary = tag("p", "The database is at revision ", tag("strong", revision), ". ", _counts(members))
    parts = {"members": joined((summary, source_line(sample), made))}
    return ConsolePage("Controllers", parts, filter_form(path, query, _states()))


def _states() -> Sequence[str]:
    from nb_api.fleet.judging import STATES

    return STATES


def _counts(members: Sequence[FleetMember]) -> Markup:
    counts = Counter[str](one.state for one in members)
    named = (name for name in _states() if counts[name])
    return joined(joined((link(f"/controllers?state={name}", state(name)), f" {counts[name]} ")) for name in named)


def _name(member: FleetMember) -> Cell:
    return Cell(lambda: link(f"/member?key={urllib.parse.quote(member.key)}", member.name), member.name)


def _state(member: FleetMember) -> Cell:
    def shown() -> Markup:
        return tag("span", *(joined((state(name), " ")) for name in member.states), title=" ".join(member.why))

    return Cell(shown, f"{_states().index(member.state):02d} {' '.join(member.states)}")


def _seen(member: FleetMember) -> Cell:
    return Cell(lambda: joined((seconds(member.silent_s), " ago")), member.silent_s)


def _rate(value: float | None) -> Cell:
    return cell(value, None if value is None else f"{value:,.1f}")


def _controller_row(member: FleetMember, verdict: str) -> RowView:
    report = member.report
    if report is None:
        unknown = [cell(None)] * (len(CONTROLLER_COLUMNS) - 3)
        return RowView([_name(member), _state(member), *unknown, _seen(member)], member.states)
    position = min((copy.position for copy in report.copies), default=None)
    newest = min((copy.newest for copy in report.copies), default=None)
    rates = [rate for rate in (member.received_per_s, member.published_per_s) if rate is not None]
    has_resyncs = report.copies or report.has_bus
    # What a silent member lacked at its last report is not what it lacks now.
    behind = member.behind if report.copies and (member.behind or "silent" not in member.states) else None
    return RowView(
        [
            _name(member),
            _state(member),
            cell(report.role),
            cell(report.host),
            cell(" ".join(filter(None, (report.release, report.program_release)))),
            cell(position, "no copy" if position is None else str(position)),
            cell(newest, "" if newest is None else str(newest)),
            cell(behind, None if report.copies else ""),
            cell(report.lag),
            _rate(sum(rates) if rates else None),
            cell(sum(report.resyncs.values()) if has_resyncs else None, None if has_resyncs else ""),
            cell(sum(copy.objects for copy in report.copies) if report.copies else None, None if report.copies else ""),
            cell(verdict, verdict if verdict or report.copies else ""),
            _seen(member),
        ],
        member.states,
    )


# -- publishers and subscribers


def publishers(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of registered publishers, members that publish, and the publisher service of this host."""
    sample = sources.database.sample
    found = sample.value
    if found is None:
        registered = sending = joined((absent("database", sample),))
    else:
        rows = [
            RowView([
                cell(one.entry.name), cell(one.entry.address), cell(one.entry.guid), cell(one.entry.renewals),
                Cell(_renewed(one), one.unchanged_s),
            ])
            for one in sorted(found.publishers, key=lambda one: (-one.unchanged_s, one.entry.name))
        ]  # fmt: skip
        empty = joined((
            "No publisher is registered in the directory: subscribers listen to configured addresses only. Next: ",
            command("heliograph publisher-service --config-file /etc/heliograph/heliograph.conf"),
        ))  # fmt: skip
        directory = fixed_table(DIRECTORY_COLUMNS, rows, caption="Publishers in the directory", empty=empty)
        registered = section("Directory", source_line(sample), directory)
        members = [one for one in found.fleet.members if one.report is not None and _sends(one)]
        made = table(path, query, SENDER_COLUMNS, RowsView(members, _sender_row),
                     caption="Members that publish", empty=NO_MEMBER)  # fmt: skip
        sending = section("Members that publish", source_line(sample), made)
    parts = {"service": _service(sources), "directory": registered, "senders": sending}
    return ConsolePage("Publishers", parts, filter_form(path, query, _states()))


def _renewed(one: RegisteredPublisher) -> Markup:
    return tag("span", seconds(one.unchanged_s), " ago", class_="state bad" if one.is_late else None)


def _sends(member: FleetMember) -> bool:
    report = member.report
    return report is not None and (report.published > 0 or report.role == "publisher-service")


def _sender_row(member: FleetMember) -> RowView:
    report = member.report
    assert report is not None
    return RowView(
        [_name(member), _state(member), cell(report.role), cell(report.host), cell(report.published),
         _rate(member.published_per_s), cell(report.send_failures), _seen(member)],
        member.states,
    )  # fmt: skip


def _service(sources: ConsoleSources) -> Markup:
    sample = sources.service.sample
    if sample.value is None:
        return section("Publisher service of this host", absent("service", sample))
    rows = [
        RowView([cell(title), cell(None, known(sample.value.get(key)))])
        for title, key in (
            ("Up for, s", "uptime_s"), ("Publisher", "name"), ("Address", "address"),
            ("Workers", "workers"), ("Streams", "streams"), ("Events", "events"),
            ("Last publish, s ago", "last_publish_s"), ("Backlog, bytes", "backlog_bytes"),
            ("Send failures", "send_failures"),
        )
    ]  # fmt: skip
    made = fixed_table((Column("what", "What"), Column("value", "Value")), rows, caption="Its report", empty="")
    return section("Publisher service of this host", source_line(sample), made)


def subscribers(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of members that listen to a bus: those that are not ok first, then by the length of their queue."""
    sample = sources.database.sample
    found = sample.value
    if found is None:
        return ConsolePage("Subscribers", {"members": joined((absent("database", sample),))})
    listening = [one for one in found.fleet.members if one.report is not None and one.report.has_bus]
    listening.sort(key=lambda one: (one.state == "ok", -one.report.lag if one.report else math.inf))
    rows = RowsView(listening, _subscriber_row)
    made = table(path, query, SUBSCRIBER_COLUMNS, rows, caption="Members that listen to a bus", empty=NO_MEMBER)
    return ConsolePage(
        "Subscribers", {"members": joined((source_line(sample), made))}, filter_form(path, query, _states())
    )


def _subscriber_row(member: FleetMember) -> RowView:
    report = member.report
    assert report is not None
    total = report.links_up + report.links_down
    resyncs = ", ".join(f"{reason} {count}" for reason, count in report.resyncs.items())
    return RowView(
        [_name(member), _state(member), cell(report.lag), cell(f"{report.links_up} of {total}"),
         cell(report.publishers), _rate(member.received_per_s), cell(report.gaps), cell(report.repaired),
         cell(report.lost), cell(report.refused),
         cell(resyncs or "none"), _seen(member)],
        member.states,
    )  # fmt: skip


# -- one member


def member(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of one member: its state, the reasons for it, and its report."""
    del path
    sample = sources.database.sample
    key = query.get("key", "")
    if sample.value is None:
        return ConsolePage(f"Member {key}", {"member": joined((absent("database", sample),))})
    found = next((one for one in sample.value.fleet.members if one.key == key), None)
    if found is None:
        gone = tag("p", f"There is no member {key!r}: it has ended. ", link("/controllers", "All members"))
        return ConsolePage(f"Member {key}", {"member": gone})
    states = tag("p", *(joined((state(name), " ")) for name in found.states))
    why = tag("ul", *(tag("li", sentence) for sentence in found.why)) if found.why else None
    heard = tag("p", "Heard of ", seconds(found.silent_s), " ago.")
    report = found.report
    forget = action_links(sources, ("forget",), key) if "silent" in found.states else None
    shown: list[Child] = [states, why, heard, forget, source_line(sample)]
    if report is not None:
        facts = {
            "Role": report.role, "Host": report.host, "Process": str(report.pid), "Release": report.release,
            "Program": report.program_release, "Up for, s": round(report.up_s), "Events received": report.received,
            "Events published": report.published, "Queue": report.lag, "Lost": report.lost,
            "Refused frames": report.refused, "Send failures": report.send_failures,
            "Links": f"{report.links_up} of {report.links_up + report.links_down}" if report.has_bus else "no bus",
        }  # fmt: skip
        rows = [RowView([cell(title), cell(None, known(value))]) for title, value in facts.items()]
        rows += [RowView([cell(f"Resyncs: {reason}"), cell(count)]) for reason, count in report.resyncs.items()]
        columns = (Column("what", "What"), Column("value", "Value"))
        shown.append(fixed_table(columns, rows, caption="Its report", empty=""))
        shown.append(_copy_table(report.copies))
    return ConsolePage(f"Member {found.name}", {"member": joined(shown)})


def _copy_table(copies: Sequence[CopyReport]) -> Markup:
    columns = (
        Column("tables", "Tables"), Column("topics", "Topics"), Column("proved", "Proved up to", True),
        Column("heard", "Heard up to", True), Column("objects", "Objects", True),
        Column("complete", "Complete"), Column("digest", "Digest"),
    )  # fmt: skip
    rows = [
        RowView([
            cell("too many to report" if one.is_cut else "all" if one.tables is None else ", ".join(one.tables)),
            cell("too many to report" if one.is_cut else ", ".join(one.topics)), cell(one.position, str(one.position)),
            cell(one.newest, str(one.newest)), cell(one.objects), cell("yes" if one.is_complete else "no"),
            cell(one.digest),
        ])
        for one in copies
    ]  # fmt: skip
    return fixed_table(columns, rows, caption="Its copies", empty="It holds no copy of objects.")
