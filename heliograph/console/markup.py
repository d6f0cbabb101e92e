"""The only place that makes HTML: every value that is no `Markup` is escaped as text.

Names come from the network and from the database; so they cannot bring HTML of their own into a page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from heliograph.output import printable

Child = object
"""`Markup` stays as it is; None is left out; everything else is shown as text."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


_ALONE = frozenset({"input", "link", "meta", "br"})


def text(child: Child) -> Markup:
    if isinstance(child, Markup):
        return child
    return Markup("") if child is None else Markup(html.escape(printable(str(child))))


def cut(words: str, characters_max: int = 200) -> str:
    """The text, cut when it is long: texts from the network may have any length."""
    if len(words) <= characters_max:
        return words
    return f"{words[:characters_max]} ... ({len(words):,} characters)"


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(map(text, children)))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An HTML element.  ``class_`` and ``data_age`` become ``class`` and ``data-age``.  An attribute that is None or
    False is left out; one that is True has no value."""
    written = []
    for attribute, value in attributes.items():
        if value is not None and value is not False:
            key = attribute.rstrip("_").replace("_", "-")
            written.append(f" {key}" if value is True else f' {key}="{html.escape(printable(str(value)))}"')
    begin = f"<{name}{''.join(written)}>"
    return Markup(begin if name in _ALONE else f"{begin}{joined(children)}</{name}>")


def link(target: str, shown: Child) -> Markup:
    return tag("a", shown, href=target)


def command(words: str) -> Markup:
    """A command to type."""
    return tag("code", words)


UNKNOWN = tag("span", "unknown", class_="unknown")
"""Stands for a number that is not known, which is never shown as 0."""


def known(value: Child) -> Markup:
    """A value; `UNKNOWN` for None and for an empty text."""
    if value is None or value == "":
        return UNKNOWN
    return text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value)


def seconds(value: float | None) -> Markup:
    """A duration as a short text; `UNKNOWN` for None."""
    if value is None:
        return UNKNOWN
    if value < 100:
        return text(f"{value:.1f} s" if value < 10 else f"{value:.0f} s")
    return text(f"{value / 60:.0f} min" if value < 100 * 60 else f"{value / 3600:.0f} h")


LEVELS = {"ok": "good", "old": "warning", "incomplete": "warning", "refusing": "warning", "unknown": "warning"}
"""State of a member -> how bad it is; all other states are bad."""


def state(name: str) -> Markup:
    """A state as a word with a colour; the word is enough without the colour."""
    return tag("span", name, class_=f"state {LEVELS.get(name, 'bad')}")
