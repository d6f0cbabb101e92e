"""The frame around every page: headings, links to other pages, and the source of the numbers."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.console.markup import Child, Markup, command, joined, seconds, tag, text
from heliograph.console.sampling import SourceSample

if TYPE_CHECKING:
    from heliograph.console.sources import ConsoleSources

PAGES = {
    "/": "Overview",
    "/topology": "Topology",
    "/controllers": "Controllers",
    "/publishers": "Publishers",
    "/subscribers": "Subscribers",
    "/topics": "Topics",
    "/groups": "Groups",
    "/durability": "Durability",
    "/log": "Log",
    "/search": "Search",
}
NEXT_STEPS = {
    "database": "heliograph console --db sqlite:///var/lib/heliograph/heliograph.db",
    "log": "heliograph console --log sqlite:///var/lib/heliograph/log.db",
    "durability": "heliograph console --bus redis://127.0.0.1:6379/0",
    "service": "heliograph publisher-service --config-file /etc/heliograph/heliograph.conf",
}
"""Source -> the command to type when it is not configured."""
_START = {"durability": "heliograph durability-service --bus redis://127.0.0.1:6379/0"}
"""Source -> the command to type when it does not answer, if that is another command."""
OLD_S = 15.0
"""An answer of a source that is older than this is marked."""


class ConsolePage(NamedTuple):
    title: str
    parts: Mapping[str, Markup]
    """The sections that are updated, by their id."""
    form: Markup = text("")
    """The section that is not updated: a form keeps what a user has typed."""
    is_live: bool = True


def source_line(sample: SourceSample[Any]) -> Markup:
    """The source of the numbers beside it, and their age."""
    if sample.value is None:
        return tag("p", f"{sample.source_title}: no answer yet", class_="source")
    age = joined((f"{sample.source_title}, ", seconds(sample.age_s), " ago"))
    is_old = bool(sample.problem) or (sample.age_s or 0) > OLD_S
    return tag(
        "p",
        "Source: ",
        age,
        "; it does not answer now" if is_old else None,
        class_="source old" if is_old else "source",
    )


def absent(name: str, sample: SourceSample[Any]) -> Markup | None:
    """A sentence in the place of numbers that were not read yet, with the next step; None when there are numbers."""
    if sample.value is not None:
        return None
    step = NEXT_STEPS[name]
    if not sample.is_asked:
        reason = f"The console does not know where to ask {sample.source_title}."
    elif sample.problem:
        reason = f"{sample.source_title[:1].upper()}{sample.source_title[1:]} cannot be asked: {sample.problem}."
        step = _START.get(name, step)
    else:
        return tag("p", f"Asking {sample.source_title} ...", class_="empty")
    return tag("p", reason, " Next: ", command(step), class_="empty")


def section(title: str, *children: Child) -> Markup:
    return joined((tag("h2", title), *children))


def action_links(sources: ConsoleSources, names: Sequence[str], target: str) -> Markup:
    """Links to the forms of actions; nothing on a console without actions."""
    if not sources.allows_actions:
        return text("")
    query = urllib.parse.quote(target, safe="")
    links = [tag("a", name.capitalize(), href=f"/action?do={name}&target={query}", class_="act") for name in names]
    return tag("p", "Actions: ", *(joined((one, " ")) for one in links), class_="acts")


def whole(path: str, page: ConsolePage, target: str, number: int, further: Mapping[str, str]) -> str:
    """The whole HTML page.  ``further`` are pages that this console has beside `PAGES`."""
    pages = {**PAGES, **further}
    allows_actions = "/actions" in pages
    links = [
        tag("li", tag("a", title, href=target_path, aria_current="page" if target_path == path else None))
        for target_path, title in pages.items()
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{page.title} - Heliograph"),
        tag("link", rel="icon", href="/assets/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/assets/console.css"),
        tag("script", src="/assets/console.js", defer=True) if page.is_live else None,
    )
    status = tag("p", tag("span", "not live", id="live", role="status", class_="live"), " ",
                 tag("button", "Pause", id="pause", type="button", hidden=True), class_="status")  # fmt: skip
    header = tag(
        "header",
        tag("a", "Go to the content", href="#content", class_="skip"),
        tag("p", tag("strong", "Heliograph"), " ", target, class_="brand"),
        status if page.is_live else None,
        tag("nav", tag("ul", *links), aria_label="Pages"),
    )  # fmt: skip
    parts = [tag("section", part, id=name) for name, part in page.parts.items()]
    main = tag("main", tag("h1", page.title), page.form, *parts, id="content")
    footer = tag(
        "footer",
        tag("p", "Actions need the admin token. " if allows_actions else "Read-only. ",
            "A number that is not known is shown as unknown, never as 0. Without scripts, reload the page."),
    )  # fmt: skip
    body = tag("body", header, main, footer, data_number=number)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
