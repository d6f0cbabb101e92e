"""A drawing of publishers and subscribers, coloured by health, made as SVG on the server.

It stays small: members that are ok are one box per role; the others have a box each, worst first.
"""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.console.layout import ConsolePage, absent, source_line
from heliograph.console.markup import LEVELS, Markup, joined, tag
from heliograph.console.sources import ConsoleSources, DatabaseView
from heliograph.console.tables import Query
from heliograph.output import counted

if TYPE_CHECKING:
    from nb_api.fleet import FleetMember

DRAWN_MAX = 14
"""Boxes on each side; further ones are counted in the last box."""
_WIDTH, _HEIGHT, _STEP = 230, 34, 46
_LEFT, _MIDDLE, _RIGHT = 10, 325, 640
_CHARACTERS_MAX = 30


class NodeView(NamedTuple):
    """One box."""

    title: str
    detail: str
    level: str
    """good, warning, bad or plain."""
    page: str


def topology(sources: ConsoleSources, path: str, query: Query) -> ConsolePage:
    del path, query
    sample = sources.database.sample
    if sample.value is None:
        return ConsolePage("Topology", {"drawing": joined((absent("database", sample),))})
    senders, receivers = _senders(sample.value), _receivers(sample.value)
    drawing = _draw(senders, receivers, _ways(sample.value))
    legend = tag(
        "p", "A line from left to right: publishes to; the colour is that of the outer box. The same in words: "
        f"{_words(senders) or 'no publisher is registered'}, over {', '.join(_ways(sample.value))}, "
        f"to {_words(receivers) or 'no member of the fleet'}.", class_="source",
    )  # fmt: skip
    return ConsolePage("Topology", {"drawing": joined((drawing, legend, source_line(sample)))})


def _words(nodes: Sequence[NodeView]) -> str:
    return "; ".join(f"{node.title} ({node.detail})" for node in nodes)


def _ways(found: DatabaseView) -> list[str]:
    """The transports in use: the schemes of the addresses in the directory."""
    schemes = {one.entry.address.partition("://")[0] for one in found.publishers if "://" in one.entry.address}
    return sorted(schemes) or ["configured addresses"]


def _senders(found: DatabaseView) -> list[NodeView]:
    nodes = [
        NodeView(one.entry.name, one.entry.address, "bad" if one.is_late else "good", "/publishers")
        for one in sorted(found.publishers, key=lambda one: (-one.unchanged_s, one.entry.name))
    ]
    members = [one for one in found.fleet.members if one.report is not None and one.report.published]
    return _cut([*nodes, *_member_nodes(members, "publishing ")], "/publishers")


def _receivers(found: DatabaseView) -> list[NodeView]:
    members = [one for one in found.fleet.members if one.report is None or one.report.has_bus or one.report.copies]
    return _cut(_member_nodes(members, ""), "/controllers")


def _member_nodes(members: Sequence[FleetMember], prefix: str) -> list[NodeView]:
    nodes = [
        NodeView(one.name, ", ".join(one.states), LEVELS.get(one.state, "bad"),
                 f"/member?key={urllib.parse.quote(one.key)}")
        for one in members if one.state != "ok"
    ]  # fmt: skip
    well = Counter(one.report.role for one in members if one.report is not None and one.state == "ok")
    return nodes + [
        NodeView(f"{prefix}{role or 'no role'}", f"{counted(count, 'member')} ok", "good",
                 f"/controllers?{urllib.parse.urlencode({'state': 'ok', 'q': role})}")
        for role, count in sorted(well.items())
    ]  # fmt: skip


def _cut(nodes: list[NodeView], page: str) -> list[NodeView]:
    """The first nodes; those without room become one box with their number and worst level."""
    if len(nodes) <= DRAWN_MAX:
        return nodes
    rest = nodes[DRAWN_MAX - 1 :]
    level = next((name for name in ("bad", "warning") if any(node.level == name for node in rest)), "good")
    return [*nodes[: DRAWN_MAX - 1], NodeView(f"{len(rest)} more", "not drawn", level, page)]


def _draw(senders: Sequence[NodeView], receivers: Sequence[NodeView], ways: Sequence[str]) -> Markup:
    rows = max(len(senders), len(receivers), 2)
    height = rows * _STEP + 10
    bus = NodeView("bus", ", ".join(ways), "plain", "/subscribers")
    middle = height / 2
    shapes: list[Markup] = []
    for place, node in enumerate(senders):
        shapes.append(_line(_LEFT + _WIDTH, _centre(place, len(senders), height), _MIDDLE, middle, node.level))
    for place, node in enumerate(receivers):
        shapes.append(_line(_MIDDLE + _WIDTH, middle, _RIGHT, _centre(place, len(receivers), height), node.level))
    shapes += [_box(node, _LEFT, _centre(place, len(senders), height)) for place, node in enumerate(senders)]
    shapes.append(_box(bus, _MIDDLE, middle))
    shapes += [_box(node, _RIGHT, _centre(place, len(receivers), height)) for place, node in enumerate(receivers)]
    title = tag("title", "Publishers and subscribers")
    drawing = tag("svg", title, *shapes, viewBox=f"0 0 {_RIGHT + _WIDTH + 10} {height}", class_="topology",
                  role="group", aria_label="Publishers and subscribers")  # fmt: skip
    return tag("div", drawing, class_="scroll", tabindex="0", role="region", aria_label="Topology")


def _centre(place: int, count: int, height: float) -> float:
    return height / 2 + (place - (count - 1) / 2) * _STEP


def _line(left: float, start: float, right: float, end: float, level: str) -> Markup:
    half = (left + right) / 2
    return tag(
        "path", d=f"M{left} {start:g} C{half:g} {start:g} {half:g} {end:g} {right} {end:g}", class_=f"way {level}"
    )


def _box(node: NodeView, left: float, centre: float) -> Markup:
    top = centre - _HEIGHT / 2
    return tag(
        "a",
        tag("title", f"{node.title}: {node.detail}"),
        tag("rect", x=left, y=f"{top:g}", width=_WIDTH, height=_HEIGHT, rx=4, class_=f"box {node.level}"),
        tag("text", _short(node.title), x=left + 10, y=f"{centre - 2:g}", class_="name"),
        tag("text", _short(node.detail), x=left + 10, y=f"{centre + 12:g}", class_="detail"),
        href=node.page,
    )


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 1]}…"
