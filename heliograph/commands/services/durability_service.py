"""``heliograph durability-service``: keep history for late joiners."""

from __future__ import annotations

import argparse
import gc

from heliograph import exits, options
from heliograph.output import Output
from heliograph.process_report import add_process_report, reporting_process

DESCRIPTION = """\
Keep published events for subscribers that come later, and share them with the other services of the domain.

[durability], and the groups of name-spaces and policies that it names, say which topics are kept, how much of them and
where, and what happens when two sides of a split meet.  Without a [durability] store everything is kept in memory only.

With a broker or a router nothing else is needed.  With zmq and other bind-based drivers, this service listens at the
address of the configuration; --publisher names the publishers, --peer the other services.

It runs until SIGTERM or Ctrl-C, then tells its peers, writes the rest of its data and ends with exit code 0.
`heliograph durability status` shows its state.
"""
LOG_LEVEL = "info"
EXAMPLES = """\
  heliograph durability-service --config-file /etc/heliograph/heliograph.conf
  heliograph durability-service --bus redis://127.0.0.1:6379/0 --store /var/lib/heliograph/durability.db
  heliograph durability-service --bus zmq://127.0.0.1:8870 --publisher tcp://127.0.0.1:8866
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--publisher", metavar="ADDRESS", action="append", default=[],
        help="a publisher to connect to; may be repeated (default: those of the configuration)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", metavar="ADDRESS", action="append", default=[],
        help="another service to connect to; may be repeated (default: [durability] fellows)",
    )  # fmt: skip
    parser.add_argument("--store", metavar="FILE", help="file for PERSISTENT data (default: [durability] store)")
    parser.add_argument("--node", metavar="NAME", help="name of this service (default: [durability] node)")
    options.add_timeout(parser)
    add_process_report(parser)
    options.add_session(parser)
    options.add_json(parser, 'one JSON line when it serves: {"address": ..., "node": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises AddressInUse, InvalidConfig, StoreInUse, StoreFailed."""
    from durability_service import config
    from durability_service.reporting import make_report
    from durability_service.service import DurabilityService

    # Millions of samples form no cycles; the default thresholds would have the collector scan them again and again.
    gc.set_threshold(200_000, 50, 100)
    conf = options.read_conf(args)
    config.register(conf)
    for name in ("store", "node"):
        if getattr(args, name) is not None:
            conf.set_override(name, getattr(args, name), group=config.GROUP)
    with (
        DurabilityService(conf, publishers=args.publisher or None, peers=args.peer or None) as service,
        reporting_process(args, lambda: make_report(service)),
    ):
        output.result(
            {"address": service.address, "node": service.node},
            f"{service.node} keeps history at {service.address}; Ctrl-C ends it",
        )
        output.flush()
        try:
            service.wait(args.timeout)
        except KeyboardInterrupt:
            output.flush()
    return exits.OK
