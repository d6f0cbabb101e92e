"""The first page: problems as sentences, then totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.commands.history.durability import find_clashes, problems_of
from heliograph.commands.history.group import lag_text
from heliograph.console.fleet_pages import NO_MEMBER
from heliograph.console.layout import ConsolePage, absent, section, source_line
from heliograph.console.live.rates import SPAN_S, charts
from heliograph.console.markup import Child, Markup, joined, known, link, state, tag
from heliograph.console.sources import OUTBOX_AGE_S, OUTBOX_SHOWN_MAX, ConsoleSources
from heliograph.console.store_pages import worst_age
from heliograph.console.tables import Query
from heliograph.output import counted

if TYPE_CHECKING:
    from nb_api.fleet import FleetMember

_NAMED_MAX = 5
_GROUP_LATE_S = 60.0
"""An event of a group that waits for longer is a problem."""


class ProblemNote(NamedTuple):
    sentence: str
    page: str
    """The page with the details."""


def overview(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    del path, query
    problems = list(find_problems(sources))
    lines = [tag("li", one.sentence, " ", link(one.page, "Show")) for one in problems]
    if problems:
        shown = tag("ul", *lines, class_="problems")
    elif sources.database.sample.value is None:
        shown = tag("p", "Nothing is known yet.")
    else:
        shown = tag("p", "No problem was found.", class_="state good")
    parts = {
        "problems": section(f"Problems: {len(problems)}", shown),
        "fleet": _fleet(sources),
        "rates": section(f"The last {SPAN_S / 60:.0f} minutes", charts(sources.rates)),
        "stores": _stores(sources),
    }
    return ConsolePage("Overview", parts)


def find_problems(sources: ConsoleSources) -> Iterator[ProblemNote]:
    """All problems, worst first."""
    pages = {"database": "/controllers", "log": "/log", "durability": "/durability", "service": "/publishers"}
    for source in sources.all():
        if source.sample.is_missed:
            yield ProblemNote(f"{source.sample.source_title}: {source.sample.problem}.", pages[source.name])
    yield from _fleet_problems(sources)
    log = sources.log.sample.value
    for group in log.groups if log is not None else ():
        if group.lag and not group.leader:
            yield ProblemNote(f"Group {group.name} has a lag of {lag_text(group)} and no leader.", "/groups")
        elif (worst_age(group) or 0) > _GROUP_LATE_S:
            yield ProblemNote(
                f"Group {group.name}: its oldest event waits for {worst_age(group):.0f} s, lag {lag_text(group)}.",
                "/groups",
            )
        if group.missing or group.expired:
            lost = f"{group.missing} events are not in the log, {group.expired} expired before they were delivered"
            yield ProblemNote(f"Group {group.name}: {lost}.", "/groups")
    for name, count in log.dead_letters.items() if log is not None else ():
        yield ProblemNote(f"Group {name} has {counted(count, 'dead letter')}.", "/groups")
    services = sources.durability.sample.value or []
    for service in services:
        spaces = [space.name for space in service.name_spaces if not space.is_complete]
        wrong = [*problems_of(service), *([f"{', '.join(spaces)} not complete"] if spaces else [])]
        if wrong:
            yield ProblemNote(f"Durability service {service.node}: {'; '.join(wrong)}.", "/durability")
    for line in find_clashes(services):
        yield ProblemNote(f"Durability services: {line}.", "/durability")
    service_report = sources.service.sample.value
    if service_report is not None and not service_report.get("ok"):
        yield ProblemNote("The publisher service of this host reports that it is not healthy.", "/publishers")


def _fleet_problems(sources: ConsoleSources) -> Iterator[ProblemNote]:
    from nb_api.fleet.judging import STATES

    found = sources.database.sample.value
    if found is None:
        return
    members = found.fleet.members
    _, _, missing = attendance(sources.expected, members)
    if missing and sources.expected is not None:
        verb = "does" if missing == 1 else "do"
        yield ProblemNote(f"{missing} of {sources.expected} expected members {verb} not answer.", "/controllers")
    for name in STATES:
        bad = [one for one in members if one.state == name and name != "ok"]
        if bad:
            names = ", ".join(one.name for one in bad[:_NAMED_MAX])
            more = f" and {len(bad) - _NAMED_MAX} more" if len(bad) > _NAMED_MAX else ""
            why = f": {bad[0].why[0]}" if len(bad) == 1 and bad[0].why else ""
            yield ProblemNote(
                f"{counted(len(bad), 'member')} {'is' if len(bad) == 1 else 'are'} {name}: {names}{more}{why}.",
                f"/controllers?state={name}",
            )
    for one in found.publishers:
        if one.is_late:
            yield ProblemNote(
                f"Publisher {one.entry.name} has not renewed its entry in the directory for {one.unchanged_s:.0f} s.",
                "/publishers",
            )
    if found.outbox:
        count = f"{found.outbox} or more" if found.outbox >= OUTBOX_SHOWN_MAX else str(found.outbox)
        yield ProblemNote(f"{count} changes wait to be published for more than {OUTBOX_AGE_S:.0f} s.", "/publishers")


def attendance(expected: int | None, members: Sequence[FleetMember]) -> tuple[int, int, int]:
    """(expected, answered, missing).  Without an expected number all known members are expected; members that are not
    silent have answered."""
    answered = sum("silent" not in one.states for one in members)
    wanted = len(members) if expected is None else expected
    return wanted, answered, max(0, wanted - answered)


def _card(title: str, value: Child, note: Child = None) -> Markup:
    return tag("div", tag("dt", title), tag("dd", tag("strong", value), note and tag("small", note)), class_="card")


def _total(rates: Sequence[float]) -> tuple[Markup, str]:
    return known(f"{sum(rates):,.1f}" if rates else None), f"reported by {counted(len(rates), 'member')}"


def _fleet(sources: ConsoleSources) -> Markup:
    sample = sources.database.sample
    found = sample.value
    if found is None:
        return section("Fleet", absent("database", sample))
    members = found.fleet.members
    expected, answered, missing = attendance(sources.expected, members)
    received = [one.received_per_s for one in members if one.received_per_s is not None]
    published = [one.published_per_s for one in members if one.published_per_s is not None]
    resyncs = [sum(one.report.resyncs.values()) for one in members if one.report is not None]
    how = "by --expect" if sources.expected is not None else "all that are known"
    cards = tag(
        "dl",
        _card("Expected", known(expected), how),
        _card("Answered", known(answered)),
        _card("Missing", known(missing)),
        _card("Received/s", *_total(received)),
        _card("Published/s", *_total(published)),
        _card("Resyncs", known(sum(resyncs) if resyncs else None), "since the members began"),
        _card("Revision", str(found.fleet.revision)),
        _card("Publishers registered", known(len(found.publishers))),
        class_="cards",
    )
    states = found.fleet.states()
    counts = [joined((link(f"/controllers?state={name}", state(name)), f" {count} ")) for name, count in states.items()]
    watched = f"Watched for {found.fleet.observed_s:.0f} s. Only watching shows which members are silent."
    return section("Fleet", cards, tag("p", *counts) if counts else tag("p", NO_MEMBER, class_="empty"),
                   tag("p", watched, class_="source"), source_line(sample))  # fmt: skip


def _stores(sources: ConsoleSources) -> Markup:
    log, services = sources.log.sample, sources.durability.sample
    cards = []
    if log.value is not None:
        found = log.value
        cards += [
            _card("Groups", known(len(found.groups) + found.groups_left_out)),
            _card("Lag of all groups", known(sum(one.lag for one in found.groups))),
            _card("Dead letters", known(sum(found.dead_letters.values()))),
            _card("Events in the log", known(sum(one.end - one.start for one in found.shards))),
        ]
    if services.value is not None:
        cards.append(_card("Durability services that answered", known(len(services.value))))
    return section(
        "Groups, log, durability",
        tag("dl", *cards, class_="cards") if cards else None,
        *(absent(name, one) or source_line(one) for name, one in (("log", log), ("durability", services))),
    )
