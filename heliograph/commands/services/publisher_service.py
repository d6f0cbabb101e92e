"""``heliograph publisher-service``: one publisher for all workers of a host."""

from __future__ import annotations

import argparse
import contextlib

from heliograph import exits, options
from heliograph.opening import databases
from heliograph.output import Output
from heliograph.process_report import add_process_report, reporting_process

DESCRIPTION = """\
Publish for every worker process of this host.

With zmq and other bind-based drivers one process per address can publish.  Workers send their events here, over a
socket file that only their user may open ([pubsub] publisher_multiproc_socket), and this service publishes them all.
No event is lost when it is stopped or killed: workers keep unacknowledged events and send them to the next service,
which also knows what the last one had published.

With a database (--db, or [db] url with [pubsub] enable_df_pub_sub) it also publishes what killed writers left in the
outbox, and enters its address into the directory of publishers.

It runs until SIGTERM or Ctrl-C, publishes what workers have sent until then, and ends with exit code 0.  SIGHUP reads
the configuration again.  `heliograph status` shows its state.
"""
LOG_LEVEL = "info"
EXAMPLES = """\
  heliograph publisher-service --config-file /etc/heliograph/heliograph.conf
  heliograph publisher-service --bus zmq://127.0.0.1:8866
  heliograph publisher-service --bus zmq://127.0.0.1:8866 --db postgresql://db.example/objects
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_report(parser)
    options.add_session(parser)
    databases.add_db(parser)
    options.add_json(parser, 'one JSON line when it is ready: {"address": ..., "guid": ..., "socket": ...}')


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises AddressInUse, InvalidConfig."""
    from publisher_service import reporting, runner
    from publisher_service.service import PublisherService

    service = PublisherService(databases.read_service_conf(args))

    def on_ready() -> None:
        parts.enter_context(reporting_process(args, lambda: reporting.make_report(service)))
        report = service.report()
        output.result(
            {name: report[name] for name in ("address", "guid", "socket", "pid")},
            f"publishing at {report['address']} for workers at {report['socket']}; Ctrl-C ends it",
        )
        output.flush()

    with contextlib.ExitStack() as parts:
        runner.run(service, on_ready=on_ready)
    return exits.OK
