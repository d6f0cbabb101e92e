"""Tables of the console: sorted, filtered and cut into pages on the server, by parameters of the URL.

Unknown values come last in every order.  Totals count all rows, not only those that are shown.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, overload

from heliograph.console.markup import Child, Markup, cut, joined, known, link, tag, text
from heliograph.output import counted

ROWS_PER_PAGE = 50
_VALUE_MAX = 200
"""Characters of a parameter of the URL that are used."""

Query = Mapping[str, str]
T = TypeVar("T")


class Cell(NamedTuple):
    """A cell of a table."""

    shown: Child | Callable[[], Child]
    """The content, or a function that makes it: of thousands of rows that are sorted, most are not shown."""
    order: float | str | None
    """The value by which it is sorted; None when it is not known."""


class RowView(NamedTuple):
    cells: Sequence[Cell]
    states: Sequence[str] = ()


class RowsView(Sequence[RowView]):
    """Rows that are made when they are read: most pages show fifty of thousands."""

    def __init__(self, items: Sequence[T], make: Callable[[T], RowView]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> RowView: ...
    @overload
    def __getitem__(self, place: slice) -> list[RowView]: ...
    def __getitem__(self, place: int | slice) -> RowView | list[RowView]:
        return list(map(self._make, self._items[place])) if isinstance(place, slice) else self._make(self._items[place])


class Column(NamedTuple):
    key: str
    title: str
    is_number: bool = False


def cell(value: float | str | None, shown: Child = None) -> Cell:
    """A cell with a number or a text; None and an empty text mean that it is not known."""
    made = (lambda: known(cut(value, 500) if isinstance(value, str) else value)) if shown is None else shown
    return Cell(made, None if value == "" else value)


def parse_query(query: str) -> dict[str, str]:
    """The first value of each name; empty for a malformed query."""
    try:
        found = urllib.parse.parse_qsl(query, max_num_fields=20)
    except ValueError:
        return {}
    return {name: value[:_VALUE_MAX] for name, value in reversed(found)}


def address(path: str, query: Query, **changed: str | None) -> str:
    """The URL of a page with some of its parameters changed; None removes one."""
    wanted = {**query, **changed}
    encoded = urllib.parse.urlencode({name: value for name, value in wanted.items() if value})
    return f"{path}?{encoded}" if encoded else path


def table(
    path: str, query: Query, columns: Sequence[Column], rows: Sequence[RowView], *, caption: str, empty: Child
) -> Markup:
    """A table with sorting, filters and pages.  ``rows`` are in the default order, worst first."""
    if not rows:
        return tag("p", empty, class_="empty")
    is_filtered = query.get("q") or query.get("state")
    wanted = [row for row in rows if _is_wanted(row, query)] if is_filtered else rows
    sort = query.get("sort", "")
    keys = [column.key for column in columns]
    if sort.lstrip("-") in keys:
        wanted = _sorted(wanted, keys.index(sort.lstrip("-")), is_falling=sort.startswith("-"))
    pages = max(1, -(-len(wanted) // ROWS_PER_PAGE))
    number = min(max(1, _natural(query.get("page"))), pages)
    first = (number - 1) * ROWS_PER_PAGE
    counts = f"{counted(len(rows), 'row')}" if len(wanted) == len(rows) else f"{len(wanted):,} of {len(rows):,} rows"
    heads = [_head(path, query, column, sort) for column in columns]
    grid = _grid(f"{caption}: {counts}", heads, columns, wanted[first : first + ROWS_PER_PAGE])
    return joined((grid, _pager(path, query, number, pages)))


def fixed_table(columns: Sequence[Column], rows: Sequence[RowView], *, caption: str, empty: Child) -> Markup:
    """A short table without sorting and filters: the first rows, and how many there are."""
    if not rows:
        return tag("p", empty, class_="empty")
    heads = [tag("th", one.title, scope="col", class_="number" if one.is_number else None) for one in columns]
    shown = f", the first {ROWS_PER_PAGE}" if len(rows) > ROWS_PER_PAGE else ""
    return _grid(f"{caption}: {counted(len(rows), 'row')}{shown}", heads, columns, rows[:ROWS_PER_PAGE])


def _grid(caption: str, heads: Sequence[Markup], columns: Sequence[Column], rows: Sequence[RowView]) -> Markup:
    body = []
    for row in rows:
        name, *others = row.cells
        cells = [tag("th", _shown(name), scope="row")]
        for column, one in zip(columns[1:], others, strict=True):
            cells.append(tag("td", _shown(one), class_="number" if column.is_number else None))
        body.append(tag("tr", *cells))
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body))
    # On a narrow screen the table can be scrolled sideways, with the keyboard, too.
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _shown(one: Cell) -> Child:
    return one.shown() if callable(one.shown) else one.shown


def filter_form(path: str, query: Query, states: Sequence[str] = ()) -> Markup:
    """The filter of a table.  The form uses GET, so that the filter is in the URL."""
    chosen = query.get("state", "")
    choices = ["", "bad", *states] if states else []
    select = tag(
        "label", "State ",
        tag("select", *(tag("option", one or "all", value=one, selected=one == chosen) for one in choices),
            name="state"),
    ) if choices else None  # fmt: skip
    return tag(
        "form",
        tag("label", "Contains ", tag("input", type="search", name="q", value=query.get("q", ""))),
        select,
        tag("input", type="hidden", name="sort", value=query["sort"]) if query.get("sort") else None,
        tag("button", "Filter", type="submit"),
        link(path, "Show all") if query else None,
        method="get", action=path, class_="filter", role="search",
    )  # fmt: skip


def _is_wanted(row: RowView, query: Query) -> bool:
    needle, state = query.get("q", "").casefold(), query.get("state", "")
    if state and state not in row.states and not (state == "bad" and row.states and row.states[0] != "ok"):
        return False
    return not needle or any(needle in str(one.order).casefold() for one in row.cells if one.order is not None)


def _sorted(rows: Sequence[RowView], place: int, *, is_falling: bool) -> Sequence[RowView]:
    orders = [row.cells[place].order for row in rows]
    known_ones = [number for number, order in enumerate(orders) if order is not None]
    known_ones.sort(key=lambda number: _order(orders[number]), reverse=is_falling)
    return RowsView(known_ones + [number for number, order in enumerate(orders) if order is None], rows.__getitem__)


def _order(value: float | str | None) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value or 0), "")


def _head(path: str, query: Query, column: Column, sort: str) -> Markup:
    falling = f"-{column.key}"
    # The first click sorts numbers from the largest and names from A; the second click reverses the order.
    first, second = (falling, column.key) if column.is_number else (column.key, falling)
    order = {column.key: "ascending", falling: "descending"}.get(sort)
    wanted = address(path, query, sort=second if sort == first else first, page=None)
    arrow = {"ascending": " ▲", "descending": " ▼"}.get(order or "", "")
    return tag(
        "th", link(wanted, column.title), tag("span", arrow, aria_hidden="true") if arrow else None,
        scope="col", aria_sort=order, class_="number" if column.is_number else None,
    )  # fmt: skip


def _pager(path: str, query: Query, number: int, pages: int) -> Markup:
    if pages == 1:
        return text("")
    before = link(address(path, query, page=str(number - 1)), "Previous") if number > 1 else None
    after = link(address(path, query, page=str(number + 1)), "Next") if number < pages else None
    return tag("nav", before, tag("span", f" Page {number} of {pages} "), after, class_="pager", aria_label="Pages")


def _natural(value: str | None) -> int:
    return int(value) if value and value.isascii() and value.isdecimal() and len(value) < 9 else 1
