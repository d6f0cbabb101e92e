"""``heliograph durability-service``: keep history for late joiners."""

from __future__ import annotations

import argparse
import gc

from heliograph import exits, options
from heliograph.metrics import add_telling, told
from heliograph.output import Output

DESCRIPTION = """\
Keep what was published for those who come later, and share it with the other services of the domain.

What is kept of which topics, where, and what happens when two sides of a split meet, is set by [durability] and the
groups of name-spaces and policies that it names.  Without a [durability] store everything is kept in memory only.

Where a broker or a router stands between, nothing else is needed.  With zmq and other bind-based drivers, the address
of the configuration is where this service listens; --publisher names the publishers, --peer the other services.

It runs until SIGTERM or Ctrl-C, says good-bye, writes what is left and ends with exit code 0.
`heliograph durability status` asks how it is.
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
        help="a publisher to listen to; may be repeated (default: those of the configuration)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", "--fellow", metavar="ADDRESS", action="append", default=[],
        help="another service to listen to; may be repeated (default: [durability] fellows)",
    )  # fmt: skip
    parser.add_argument("--store", metavar="FILE", help="file for PERSISTENT data (default: [durability] store)")
    parser.add_argument("--node", metavar="NAME", help="name of this service (default: [durability] node)")
    options.add_timeout(parser)
    add_telling(parser)
    options.add_session(parser)
    options.add_json(parser, 'one JSON line when it serves: {"address": ..., "node": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises AddressInUse, InvalidConfig, StoreInUse, StoreFailed."""
    from durability_service import config
    from durability_service.reporting import make_report
    from durability_service.service import DurabilityService

    # Millions of samples make no cycles; looking through them again and again costs more than keeping them.
    gc.set_threshold(200_000, 50, 100)
    conf = options.read_conf(args)
    config.register(conf)
    for name in ("store", "node"):
        if getattr(args, name) is not None:
            conf.set_override(name, getattr(args, name), group=config.GROUP)
    with (
        DurabilityService(conf, publishers=args.publisher or None, peers=args.peer or None) as service,
        told(args, lambda: make_report(service)),
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
