"""The search for an object: its version in the database, and which copies have it."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Literal, get_args

from heliograph.console.layout import ConsolePage, absent, source_line
from heliograph.console.markup import Markup, command, joined, link, seconds, state, tag
from heliograph.console.sources import ConsoleSources
from heliograph.console.tables import Cell, Column, Query, RowView, cell, table
from pubsub_api.errors import HeliographError

if TYPE_CHECKING:
    from nb_api.fleet import CopyReport, FleetMember

COLUMNS = (
    Column("name", "Member"), Column("state", "State"), Column("passed", "Has it"),
    Column("proved", "Proved up to", True), Column("heard", "Heard up to", True), Column("seen", "Heard of", True),
)  # fmt: skip
Passed = Literal["no, not yet", "not known", "likely: it has heard as far, and knows of no gap", "yes"]
_ORDER: tuple[Passed, ...] = get_args(Passed)


def search(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    """The page of one object; the parameter ``object`` is ``TABLE/KEY``.  Blocks while the database is asked."""
    wanted = query.get("object", "")
    form = tag(
        "form",
        tag("label", "Object, as TABLE/KEY ", tag("input", type="search", name="object", value=wanted, required=True)),
        tag("button", "Search", type="submit"),
        method="get", action=path, class_="filter", role="search",
    )  # fmt: skip
    if not wanted:
        hint = tag("p", "List the objects of a table: ", command("heliograph db list TABLE"), class_="empty")
        return ConsolePage("Search", {"found": hint}, form)
    return ConsolePage("Search", {"found": _found(sources, path, query, wanted)}, form)


def _found(sources: ConsoleSources, path: str, query: Query, wanted: str) -> Markup:
    from nb_api.errors import ObjectNotFound

    sample = sources.database.sample
    db = sources.db.opened
    if sample.value is None or db is None:
        return joined((absent("database", sample),))
    table_name, _, key = wanted.partition("/")
    topic = None
    try:
        found = db.get(table_name, key)
        version, topic = found.version, found.topic
        sentence = tag("p", "Version ", tag("strong", version), f" of {table_name}/{key}, topic {topic}.")
    except ObjectNotFound as error:
        if error.deleted_version is None:
            return tag("p", f"There is no object {table_name}/{key}, or it was deleted long ago.", class_="empty")
        version = error.deleted_version
        sentence = tag("p", f"{table_name}/{key} was deleted, by version ", tag("strong", version), ".")
    except HeliographError as error:
        return tag("p", f"The database does not answer: {error}", class_="state bad")
    rows = []
    for member in sample.value.fleet.members:
        for copy in member.report.copies if member.report is not None else ():
            passed = has_passed(copy, table_name, topic, version)
            if passed is not None:
                rows.append((passed, _row(member, copy, passed)))
    rows.sort(key=lambda pair: _ORDER.index(pair[0]))
    sure, likely = (sum(passed == _ORDER[place] for passed, _ in rows) for place in (-1, -2))
    summary = tag("p", f"Of {len(rows)} copies that may follow it {sure} have it for sure, {likely} likely.")
    made = table(path, query, COLUMNS, [row for _, row in rows], caption="Copies that may follow it",
                 empty="No member of the fleet follows it.")  # fmt: skip
    asked = tag("p", "Source: the database, just now", class_="source")
    return joined((sentence, asked, summary, source_line(sample), made))


def has_passed(copy: CopyReport, table_name: str, topic: str | None, version: int) -> Passed | None:
    """Whether a copy has a version of an object; None when the copy does not follow the object.

    When ``topic`` is None, the topic is not known, and only the table decides.
    """
    from nb_api.core.own_tables import is_own
    from pubsub_api.core.topics import FilterSet
    from pubsub_api.errors import InvalidTopic

    if copy.position >= version:
        passed: Passed = "yes"
    elif copy.newest >= version:
        passed = "likely: it has heard as far, and knows of no gap" if copy.is_complete else "not known"
    else:
        passed = "no, not yet"
    if copy.is_cut:
        return "not known"
    if table_name not in copy.tables if copy.tables is not None else is_own(table_name):
        return None
    try:
        return passed if topic is None or FilterSet(copy.topics).match(topic) else None
    except InvalidTopic:  # any program that can write to the database can write a report
        return "not known"


def _row(member: FleetMember, copy: CopyReport, passed: Passed) -> RowView:
    level = "bad" if passed == _ORDER[0] else "warning" if passed == "not known" else "good"
    return RowView(
        [
            Cell(link(f"/member?key={urllib.parse.quote(member.key)}", member.name), member.name),
            Cell(state(member.state), member.state),
            Cell(tag("span", passed, class_=f"state {level}"), passed),
            cell(copy.position, str(copy.position)),
            cell(copy.newest, str(copy.newest)),
            Cell(joined((seconds(member.silent_s), " ago")), member.silent_s),
        ],
        member.states,
    )
