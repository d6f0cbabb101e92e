"""Asks for confirmation before work that cannot be undone."""

from __future__ import annotations

import argparse
import sys

from heliograph.output import Output, note, printable


def is_confirmed(args: argparse.Namespace, output: Output, what: str) -> bool:
    """Whether to do ``what``, which begins with a verb.  ``--yes`` confirms; ``--dry-run`` prints it and refuses.

    Blocks until the user has answered.  Raises UsageError without a terminal.
    """
    if args.dry_run:
        output.result({"dry_run": True, "would": what}, f"would {what}")
        return False
    if args.yes:
        return True
    if not (sys.stdin and sys.stdin.isatty()):
        from pubsub_api.errors import UsageError

        raise UsageError(
            f"this would {what}, and there is no terminal to confirm it: give --yes, or --dry-run to see it only"
        )
    sys.stderr.write(f"This will {printable(what)}. It cannot be undone. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing was done")
    return False
