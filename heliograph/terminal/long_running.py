"""For commands that run until ``--timeout`` or Ctrl-C, and print their counters meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping

from heliograph import options
from heliograph.output import Output


def wait_until_end(args: argparse.Namespace) -> None:
    """Block until ``--timeout`` or Ctrl-C, which is the normal end of a service."""
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait(threading.TIMEOUT_MAX if args.timeout is None else args.timeout)


def add_counters(parser: argparse.ArgumentParser) -> None:
    """``--timeout`` and ``--report``."""
    options.add_timeout(parser)
    parser.add_argument(
        "--report", metavar="TIME", type=options.seconds, default=60.0,
        help="pause between two prints of the counters, 0 for never (default: 60s)",
    )  # fmt: skip


def print_counters_until_end(
    output: Output,
    args: argparse.Namespace,
    counters: Callable[[], Mapping[str, object]],
    failures: queue.SimpleQueue[Exception] | None = None,
) -> None:
    """Block until ``--timeout`` or Ctrl-C, and print the counters every ``--report`` seconds and at the end.

    Raises the error that another thread puts into ``failures`` when the work cannot go on.
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
