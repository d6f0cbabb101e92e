"""Reads the documentation as data: its pages, code blocks, tables, headings and links."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.helpers.paths import ROOT

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)\[[^\]`]*(?:`[^`]*`)?[^\]]*\]\((?P<target>[^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced code block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def title(self) -> str:
        """Its first line, when that is a comment: the name of the file it belongs to."""
        first = self.text.partition("\n")[0]
        return first[2:] if first.startswith("# ") else ""

    @property
    def starts_spark(self) -> bool:
        """A program that does takes as long as fifty others."""
        return "open_session(" in self.text

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[pathlib.Path]:
    """Every page, relative to the root of the checkout."""
    return [pathlib.Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))]


def read(page: str | pathlib.Path) -> str:
    return (ROOT / page).read_text()


def blocks(language: str | None = None) -> list[Block]:
    """All code blocks, of one language or of every one."""
    return [block for page in pages() for block in _blocks_of(page) if language is None or block.language == language]


def _blocks_of(page: pathlib.Path) -> Iterator[Block]:
    text = read(page)
    for found in _FENCE.finditer(text):
        yield Block(str(page), text.count("\n", 0, found.start()) + 1, found["language"], found["text"])


def prose(page: str | pathlib.Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", read(page))


def spans(page: str | pathlib.Path) -> list[str]:
    """What stands between single backticks in the prose."""
    return _SPAN.findall(prose(page))


def links(page: str | pathlib.Path) -> list[str]:
    return [found["target"] for found in _LINK.finditer(prose(page))]


def anchors(page: str | pathlib.Path) -> set[str]:
    """The anchors that the headings of a page make, as they are spelt in links."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


def section(page: str | pathlib.Path, heading: str) -> str:
    """The text under a heading, to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", prose(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no heading {heading!r}"
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text, each a list of rows of cells, the header first."""
    found = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [[_cells(line) for number, line in enumerate(table.splitlines()) if number != 1] for table in found]


def table(page: str | pathlib.Path, heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a table under a heading, without its header."""
    return tables(section(page, heading))[number][1:]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def plain(cell: str) -> str:
    """A cell without backticks."""
    return cell.replace("`", "")
