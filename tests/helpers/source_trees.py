"""The syntax trees of source files, for tests that are about the code itself.

Every file is parsed once in a process.  `forget` gives the memory back: it is a million objects.
"""

from __future__ import annotations

import ast
import functools
import gc
import pathlib
from collections.abc import Iterable

from tests.helpers.paths import ROOT


def parse(paths: Iterable[pathlib.Path]) -> dict[pathlib.Path, ast.Module]:
    """Path -> syntax tree; paths are relative to the root of the checkout.  Nothing is garbage meanwhile: looking for
    it would take twice as long as parsing does."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return {path: _parsed(path) for path in paths}
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def _parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


forget = _parsed.cache_clear
