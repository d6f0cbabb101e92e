"""The console of commands: that of `rich`, except for a broken pipe."""

from __future__ import annotations

from rich.console import Console


class PipeConsole(Console):
    """Leaves a broken pipe to `heliograph.main`, which has an exit code for it; `rich` would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Called by `rich` while it handles a BrokenPipeError."""
        self.quiet = True
        raise BrokenPipeError("the reader of the output has ended")
