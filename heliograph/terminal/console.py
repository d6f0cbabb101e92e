"""The console of commands: `rich`'s, but for what happens when the output has no reader any more."""

from __future__ import annotations

from rich.console import Console


class PipeConsole(Console):
    """Leaves a broken pipe to the command line as a whole, which knows the exit code for it; `rich` would exit by 1."""

    def on_broken_pipe(self) -> None:
        """Called by `rich` while it handles a BrokenPipeError."""
        self.quiet = True
        raise BrokenPipeError("nobody reads the output any more")
