"""Saves what the demonstration prints as a picture, for pages that cannot run it."""

from __future__ import annotations

import pathlib
import re

from heliograph.terminal.console import PipeConsole

_COLUMNS = 120
_TITLE = "heliograph demo"


def recording_console() -> PipeConsole:
    """A console that prints as on a terminal of a usual width, and remembers what it printed."""
    return PipeConsole(record=True, force_terminal=True, width=_COLUMNS, legacy_windows=False)


def save(console: PipeConsole, path: pathlib.Path) -> None:
    """Write what was printed as SVG, without fonts of other hosts.  Raises OSError."""
    picture = console.export_svg(title=_TITLE, unique_id="demo")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1<title>{_TITLE}</title>", picture, count=1), encoding="utf-8")
