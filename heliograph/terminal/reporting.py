"""Commands that run until they are ended, and print their counters meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping

from heliograph import options
from heliograph.output import Output


def add_report(parser: argparse.ArgumentParser) -> None:
    """``--timeout`` and ``--report``."""
    options.add_timeout(parser)
    parser.add_argument(
        "--report", metavar="TIME", type=options.seconds, default=60.0,
        help="print the counters so often, 0 for never (default: 60s)",
    )  # fmt: skip


def report_until_end(
    output: Output,
    args: argparse.Namespace,
    counters: Callable[[], Mapping[str, object]],
    failures: queue.SimpleQueue[Exception] | None = None,
) -> None:
    """Block until ``--timeout`` or Ctrl-C, and print the counters every ``--report`` seconds and at the end.

    Raises an error that another thread puts into ``failures``, because going on is of no use.
    """
    failures = failures or queue.SimpleQueue()
    left_s = threading.TIMEOUT_MAX if args.timeout is None else args.timeout
    with contextlib.suppress(KeyboardInterrupt):
        while left_s > 0:
            pause_s = min(left_s, args.report or threading.TIMEOUT_MAX)
            try:
                raise failures.get(timeout=pause_s)
            except queue.Empty:
                left_s -= pause_s
            if left_s > 0:
                output.counters(counters())
    output.counters(counters())
