"""``heliograph doctor``: check everything that a bus needs, and print how to fix what is wrong."""

from __future__ import annotations

import argparse
import collections

from heliograph import exits, options
from heliograph.doctor import bus, files, host, logs, spark
from heliograph.doctor.findings import Check, CheckContext, Finding
from heliograph.opening.logs import add_log
from heliograph.output import STATUS_STYLES, Output

DESCRIPTION = """\
Check Python, libraries, limits and the clock; Spark and its Java, where installed; the configuration, the driver, its
address or server; and send a real event through the selected driver.  With --log or [log] url also check whether the
server of the durable log answers and keeps data safely.  Each problem is printed with the way to fix it.

A running system is not disturbed: an address is probed without listening on it, and the test event goes through a free
port of this host, or through the configured server under a topic of its own.

A warning may be intended.  The exit code is 1 when a check failed, which means that the bus cannot work so.
"""
LOG_LEVEL = "error"
EXAMPLES = """\
  heliograph doctor
  heliograph doctor --config-file /etc/heliograph.conf
  heliograph doctor --log postgresql://heliograph@db.example/heliograph
  heliograph doctor --bus redis://127.0.0.1:6379/0 --json | jq '.findings[] | select(.status == "failed")'
"""

CHECKS: tuple[Check, ...] = (
    host.check_python, host.check_libraries, host.check_drivers, host.check_open_files, host.check_clock,
    spark.check_spark,
    files.check_configuration, files.check_names,
    bus.check_driver, bus.check_signing, bus.check_address, bus.check_server, bus.check_round_trip,
    logs.check_log,
)  # fmt: skip
_INDENT = " " * 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", metavar="TIME", type=options.seconds, default=5.0,
        help="how long to wait for a server, a publisher or an event (default: 5s)",
    )  # fmt: skip
    add_log(parser, "a durable log to check, as in redis://127.0.0.1:6379/0")
    options.add_session(parser)
    options.add_json(parser, "one JSON object with all findings")


def run(args: argparse.Namespace, output: Output) -> int:
    source = ", ".join(args.config_file) or ("the URL" if args.bus else "the defaults")
    context = CheckContext(lambda: options.read_conf(args), source, list(args.config_file), args.timeout, args.log)
    findings: list[Finding] = []
    for check in CHECKS:
        for finding in check(context):
            findings.append(finding)
            if not args.json:
                _show(output, finding)
    counts = collections.Counter(finding.status for finding in findings)
    output.result(
        {"healthy": not counts["failed"], "findings": findings},
        ", ".join(f"{number} {status}" for status, number in counts.items()),
    )
    return exits.FAILED if counts["failed"] else exits.OK


def _show(output: Output, finding: Finding) -> None:
    """Print a finding at once: some checks take seconds."""
    style = STATUS_STYLES[finding.status] if finding.status != "ok" else ""
    output.line(f"{finding.status:<8} {finding.check:<14} {finding.detail}", style=style)
    if finding.fix:
        output.line(f"{_INDENT}to do: {finding.fix}")
    output.flush()
