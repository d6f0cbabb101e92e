"""Saves what the demonstration prints as a picture, for pages that cannot run it."""

from __future__ import annotations

import os
import pathlib
import re

from heliograph.terminal.console import PipeConsole
from pubsub_api.errors import UsageError

_COLUMNS = 120
_TITLE = "heliograph demo"


def check_place(path: pathlib.Path) -> None:
    """Raises UsageError when `save` could not write there: said before the demonstration, not after it."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written")


def recording_console() -> PipeConsole:
    """A console that prints as on a terminal of a usual width, and remembers what it printed."""
    return PipeConsole(record=True, force_terminal=True, width=_COLUMNS, legacy_windows=False)


def save(console: PipeConsole, path: pathlib.Path) -> None:
    """Write what was printed as SVG, without fonts of other hosts.  Raises OSError."""
    picture = console.export_svg(title=_TITLE, unique_id="demo")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1<title>{_TITLE}</title>", picture, count=1), encoding="utf-8")
