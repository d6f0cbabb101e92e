"""Options that several commands share, and the way from them to a configuration or a session."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from heliograph import exits

if TYPE_CHECKING:
    from oslo_config import cfg

    from pubsub_api import Session

Subparsers = argparse._SubParsersAction
"""What `argparse` hands to ``register``; it has no public name."""

DEFAULT_URL = "zmq://127.0.0.1:8866"
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_command(
    subparsers: Subparsers[argparse.ArgumentParser],
    name: str,
    *,
    summary: str,
    description: str,
    examples: str,
    log_level: str = "warning",
) -> argparse.ArgumentParser:
    """Add the parser of a command, with what every command has: a help that teaches, and options for trouble."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}\n{exits.EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    trouble = parser.add_argument_group("when something is wrong")
    trouble.add_argument("--debug", action="store_true", help="show the traceback of an error")
    trouble.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=log_level,
        help="what to log on standard error (default: %(default)s)",
    )
    return parser


def add_json(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"for scripts: {what}")


def add_session(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--config-file``: which bus to use."""
    group = parser.add_argument_group("the bus")
    group.add_argument("--url", metavar="URL", help=f"driver and address, as in {DEFAULT_URL} (the default)")
    group.add_argument(
        "--config-file", metavar="FILE", action="append", default=[],
        help="read the configuration from FILE instead; may be repeated, later files win",
    )  # fmt: skip


def read_conf(args: argparse.Namespace) -> cfg.ConfigOpts:
    """The configuration that ``--url`` or ``--config-file`` names, or the defaults.

    Raises UsageError, InvalidConfig, and for a URL what loading its driver may raise.
    """
    from pubsub_api import loading
    from pubsub_api.config import new_conf
    from pubsub_api.errors import UsageError

    if args.url is not None and args.config_file:
        raise UsageError("give --url or --config-file, not both")
    if args.url is not None:
        return loading.conf_from_url(args.url)
    return new_conf(args.config_file)


def open_session(args: argparse.Namespace) -> Session:
    """A session on the bus that the options name.  Opens no connection yet; raises as `read_conf` and as `open`."""
    import pubsub_api

    return pubsub_api.open(conf=read_conf(args))


def json_value(text: str) -> Any:
    """What the text says in JSON.  Raises ValueError, also for what Python would take: ``NaN``, ``Infinity``."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value")


def positive_int(text: str) -> int:
    """An argparse type."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def natural_int(text: str) -> int:
    """An argparse type: 0 is allowed."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return number


def seconds(text: str) -> float:
    """An argparse type: a time of 0 or more, at most a year."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 365 * 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to a year")
    return value


def rate(text: str) -> float:
    """An argparse type: events per second."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of events per second greater than 0")
    return value
