"""Command-line options that several commands share, and how they become a configuration or a session."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from heliograph import exits, units
from heliograph.terminal import log_lines

if TYPE_CHECKING:
    from oslo_config import cfg

    from heliograph.output import Output
    from pubsub_api import Session

Subparsers = argparse._SubParsersAction
"""What ``add_subparsers`` returns; `argparse` has no public name for it."""

Run = Callable[[argparse.Namespace, "Output"], int]
"""The function that does the work of a command or a verb, and returns the exit code."""

DEFAULT_BUS = "zmq://127.0.0.1:8866"
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_command(
    subparsers: Subparsers[argparse.ArgumentParser], name: str, summary: str, module: ModuleType, log_level: str
) -> None:
    """Add the parser of a command, or of a job, from the names that its module defines (see `heliograph.commands`)."""
    parser = add_parser(subparsers, name, summary, module.DESCRIPTION, module.EXAMPLES)
    parser.set_defaults(run=getattr(module, "run", None))
    module.add_arguments(parser)
    add_troubleshooting(parser, log_level)


def add_verbs(
    parser: argparse.ArgumentParser, verbs: Iterable[str], *, description: str, examples: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Add the parsers of a command's verbs; the caller adds arguments to each before it takes the next.

    The summary of a verb is its line in the description of the command, and its examples are the command's examples
    that use it.
    """
    parser.formatter_class = _VerbsInDescription
    subparsers = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
    lines = {line.split()[0]: line.split(None, 1)[1] for line in description.splitlines() if line.startswith("  ")}
    for name in verbs:
        sentence = f"{lines[name][0].upper()}{lines[name][1:]}."
        parser = add_parser(subparsers, name, lines[name], textwrap.fill(sentence, 120), examples_of(name, examples))
        yield name, parser
        add_troubleshooting(parser)


class _VerbsInDescription(argparse.RawDescriptionHelpFormatter):
    """Does not list the verbs a second time."""

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


def examples_of(verb: str, examples: str) -> str:
    """The examples of a command that use the verb."""
    return "".join(line for line in examples.splitlines(keepends=True) if f" {verb} " in line)


def add_parser(
    subparsers: Subparsers[argparse.ArgumentParser],
    name: str,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a parser whose help has examples and exit codes.  Call `add_troubleshooting` after adding its arguments."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}\n{exits.EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_troubleshooting(parser: argparse.ArgumentParser, log_level: str = "warning") -> None:
    """Add the options of every command; the help shows them behind the command's own."""
    trouble = parser.add_argument_group("when something is wrong")
    trouble.add_argument(
        "--verbose", action="store_true", help="add to an error its class, and whether trying again can help"
    )
    trouble.add_argument("--debug", action="store_true", help="show the traceback of an error")
    trouble.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=log_level,
        help="least level of the log lines on standard error (default: %(default)s)",
    )
    trouble.add_argument(
        "--log-format",
        choices=log_lines.FORMATS,
        default="text",
        help="form of the log: text, a JSON object per line, or what the configuration files say to oslo.log "
        "(default: %(default)s)",
    )


def add_json(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"for scripts: {what}")


def add_config_file(parser: argparse._ActionsContainer, what: str = "read options from FILE") -> None:
    parser.add_argument("--config-file", metavar="FILE", action="append", default=[], help=what)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", metavar="TIME", type=seconds, help=f"end after this long, as in {units.DURATIONS}")


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """``--seeds``, ``--seed``, ``--first`` and ``--profile``: which seeds a simulation runs, and with which faults."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", metavar="N", type=positive_int, default=1000, help="how many (default: 1000)")
    which.add_argument("--seed", metavar="S", type=natural_int, help="replay one seed and show what happened")
    parser.add_argument("--first", metavar="S", type=natural_int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--profile", metavar="NAME", help="the same kind of faults for all seeds; an unknown name lists the profiles"
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """``--bus``, ``--config-file`` and ``--context``: which bus to use."""
    group = parser.add_argument_group("the bus")
    add_bus(group, f"driver and address, as in {DEFAULT_BUS} (the default); also HELIOGRAPH_BUS")
    add_config_file(group, "read the configuration from FILE; may be repeated, later files win; --bus wins over them")
    add_context(group)


def add_bus(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument("--bus", metavar="URL", help=what)


def add_context(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--context", metavar="NAME", help="take targets that are not given from this context (`heliograph context`)"
    )


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """``--dry-run`` and ``--yes``, for work that cannot be undone; read by `heliograph.terminal.confirming`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dry-run", action="store_true", help="only print what would be done")
    which.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def read_conf(args: argparse.Namespace) -> cfg.ConfigOpts:
    """The configuration that ``--config-file`` and ``--bus`` name, or the defaults.

    Raises InvalidConfig; for a URL also DriverNotFound and DriverDependencyMissing.
    """
    from pubsub_api import loading
    from pubsub_api.config import new_conf

    if args.bus is not None:
        return loading.conf_from_url(args.bus, config_files=args.config_file)
    return new_conf(args.config_file)


def open_session(args: argparse.Namespace) -> Session:
    """A session on the bus that the options name.  It does not connect yet.  Raises what `read_conf` and
    `pubsub_api.open` raise."""
    import pubsub_api

    return pubsub_api.open(conf=read_conf(args))


def json_value(text: str) -> Any:
    """The value of a JSON text.  Raises ValueError; unlike `json.loads` also for ``NaN``, ``Infinity``, and numbers
    such as ``1e999``, which would become infinite."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"{word} is too large a number")
    return number


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value")


T = TypeVar("T", int, float)


def number(kind: type[T], is_valid: Callable[[T], bool], what: str) -> Callable[[str], T]:
    """An argparse type for numbers that satisfy ``is_valid``; ``what`` describes them in the error."""

    def parse(text: str) -> T:
        try:
            value = kind(text)
        except ValueError:
            pass
        else:
            if is_valid(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return parse


positive_int = number(int, lambda value: value >= 1, "a whole number of 1 or more")
natural_int = number(int, lambda value: value >= 0, "a whole number of 0 or more")
seconds = units.seconds
rate = number(float, lambda value: 1e-6 <= value <= 1e9, "a number of events per second from 0.000001 to 1e9")


def choices_of(parser: argparse.ArgumentParser, option: str) -> list[str]:
    """The values that an option takes; empty when it takes any value."""
    for action in parser._actions:
        if option in action.option_strings:
            return [str(choice) for choice in action.choices or ()]
    return []
