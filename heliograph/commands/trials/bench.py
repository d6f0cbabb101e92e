"""``heliograph bench``: run the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

import heliograph
from heliograph import commands, exits, options
from heliograph.output import Output
from pubsub_api.errors import HeliographError

DESCRIPTION = """\
Measure throughput, latency and CPU against the raw transports: the same as `python -m bench` in a checkout, which
gets all arguments.  The benchmarks are not part of an installed package.
"""


class NoCheckout(HeliographError):
    """The benchmarks are only in a checkout, and this is not one."""

    fault = "environment"


def make_parser(subparsers: options.Subparsers[argparse.ArgumentParser]) -> None:
    # No options and no help of its own: all arguments, --help too, go to the benchmarks.
    parser = subparsers.add_parser("bench", help=commands.SUMMARIES["bench"], add_help=False, allow_abbrev=False)
    parser.description = DESCRIPTION
    parser.set_defaults(run=run, passed_on=[], verbose=False, debug=False, log_level="warning", log_format="text")


def run(args: argparse.Namespace, _output: Output) -> int:
    """Raises NoCheckout.  The exit code is that of the benchmarks."""
    root = pathlib.Path(heliograph.__file__).resolve().parents[1]
    if not (root / "bench" / "__main__.py").is_file():
        raise NoCheckout(
            f"there are no benchmarks beside {root.name}/heliograph: run this from a checkout, ./run bench"
        )
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "bench", *args.passed_on]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise
    return code if code >= 0 else exits.INTERRUPTED
