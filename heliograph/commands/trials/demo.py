"""``heliograph demo``: the product at work under faults, with a proof at the end."""

from __future__ import annotations

import argparse
import pathlib

import pubsub_api
from heliograph import exits, options
from heliograph.demo import recording
from heliograph.demo.screens import COLUMNS, LiveScreen, PlainScreen, Screen, cells
from heliograph.demo.settings import FILTER
from heliograph.demo.steps import Demonstration, Outcome, Plan
from heliograph.output import Output, note
from pubsub_api import loading
from pubsub_api.config import new_conf
from pubsub_api.errors import DriverDependencyMissing

DESCRIPTION = """\
Show the main job.  Nothing needs to be set up.

Forked writer processes change objects in an embedded database.  A publisher service publishes the changes, and
controller processes keep a local copy of the objects.  On the way 5% of all frames get lost, one controller is frozen
and resumed, a writer is killed, and the publisher service is killed and restarted.  At the end every copy is compared
with the database, object by object.  The exit code is 0 only when all of them are equal.

With drivers on a shared server (redis, zenoh) the writers publish directly, and there is no service to kill.  Times are
shorter than the defaults (max_idle_time is 1 second instead of 5), to keep the end short.
"""
LOG_LEVEL = "error"
EXAMPLES = """\
  heliograph demo
  heliograph demo --controllers 8 --seconds 20
  heliograph demo --driver zenoh
  heliograph demo --controllers 8 --svg /tmp/demo.svg
  heliograph demo --bus redis://127.0.0.1:6379/0
"""

SERVER_TIMEOUT_S = 10.0
MEMORY_URL = "memory://heliograph-demo"
_seconds = options.number(float, lambda value: 1.0 <= value <= 3600.0, "from 1 to 3600 seconds")
_processes = options.number(int, lambda value: 1 <= value <= 64, "a whole number from 1 to 64")
_share = options.number(float, lambda value: 0.0 <= value <= 0.5, "a number from 0 to 0.5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", metavar="S", type=_seconds, default=15.0, help="how long (default: 15)")
    parser.add_argument("--controllers", metavar="N", type=_processes, default=20, help="how many (default: 20)")
    parser.add_argument("--writers", metavar="N", type=_processes, default=4, help="how many (default: 4)")
    parser.add_argument(
        "--rate", metavar="R", type=options.rate, default=300.0, help="changes per second (default: 300)"
    )
    parser.add_argument("--drop", metavar="P", type=_share, default=0.05, help="frames lost, 0 to 0.5 (default: 0.05)")
    bus = parser.add_mutually_exclusive_group()
    bus.add_argument(
        "--driver", metavar="NAME", default="zmq", help="on this machine, at its usual address (default: zmq)"
    )
    options.add_bus(bus, "driver and server, as in redis://127.0.0.1:6379/0")
    how = parser.add_mutually_exclusive_group()
    options.add_json(how, "the outcome as one JSON object")
    how.add_argument("--svg", metavar="FILE", type=pathlib.Path, help="save what is shown as a picture, too")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises DriverNotFound, DriverDependencyMissing, WaitTimeout, DemoProcessDied, OSError."""
    plan = make_plan(args)
    check_server(plan)
    if args.svg is not None:
        recording.check_place(args.svg)
        output.console = console = recording.recording_console()
    with _screen(output) as screen:
        outcome = Demonstration(plan, screen).run()
    if args.json:
        output.record(outcome)
    else:
        _show(output, outcome)
    if args.svg is not None:
        recording.save(console, args.svg)
    return exits.OK if outcome.is_equal else exits.FAILED


def make_plan(args: argparse.Namespace) -> Plan:
    """Choose driver and address.  Without pyzmq the default is the memory driver, with a note."""
    driver = args.bus.partition("://")[0] if args.bus else args.driver
    try:
        loading.load_driver(driver)
    except DriverDependencyMissing as error:
        if args.bus or driver != "zmq":
            raise
        note(f"{error}; the demonstration goes on inside this process, with the driver memory")
        driver = "memory"
    url = args.bus or _default_url(driver)
    return Plan(
        driver=driver,
        url=url,
        in_threads=driver == "memory",
        is_bind_based=loading.build_driver(loading.conf_from_url(url)).capabilities.bind_based,
        seconds=args.seconds,
        controllers=args.controllers,
        writers=args.writers,
        rate=args.rate,
        drop=args.drop,
    )


def _default_url(driver: str) -> str:
    """The driver on this machine: at a port that the system chooses, or at the usual port of its server."""
    if driver == "memory":
        return MEMORY_URL
    is_bind_based = loading.build_driver(new_conf(), driver).capabilities.bind_based
    return f"{driver}://127.0.0.1:0" if is_bind_based else f"{driver}://127.0.0.1"


def check_server(plan: Plan) -> None:
    """Fail early when there is no server.  Raises WaitTimeout."""
    if not plan.is_bind_based and not plan.in_threads:
        with pubsub_api.open(plan.url) as session:
            session.subscriber([FILTER], lambda _event: None).wait_ready(timeout_s=SERVER_TIMEOUT_S)


def _screen(output: Output) -> Screen:
    if output.is_json:
        return Screen()
    is_live = output.can_redraw and not output.console.record
    return LiveScreen(output.console) if is_live else PlainScreen(output.console)


def _show(output: Output, outcome: Outcome) -> None:
    rows = [
        cells(it["name"], "equal" if it["is_equal"] else "failed", outcome.revision, it) for it in outcome.controllers
    ]
    output.table("", COLUMNS, rows)
    if outcome.is_equal:
        output.line(
            f"Proven: all {len(rows)} copies are equal to the database, {outcome.rows} objects after "
            f"{outcome.revision} changes, {outcome.settled_s:.1f} s after the last one.",
            style="bold green",
        )
        output.line(
            f"{outcome.total('dropped')} frames were lost on the way, {outcome.total('repaired')} events repaired, and "
            f"{outcome.total('resyncs')} resyncs made, the first of each controller included.",
            style="bold green",
        )
    else:
        unequal = ", ".join(it["name"] for it in outcome.controllers if not it["is_equal"])
        output.line(f"Failed: not equal to the database after {outcome.settled_s:.0f} s: {unequal}.", style="bold red")
