"""From words to arguments: the parsers of all commands, and suggestions for words that no parser knows.

This module imports the standard library only.  The module of a command is imported when the command is called.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from heliograph import commands, exits, options

DESCRIPTION = """\
Tells many controllers, quickly and reliably, what changed in a database.

New here?  `heliograph demo` shows it at work in less than a minute and needs no set-up.
Trouble?   `heliograph doctor` looks at everything and says how to fix it.
Help?      `heliograph help COMMAND` explains a command and shows examples.
"""


class WrongUsage(Exception):
    """The words are no valid command line.  ``command`` is the part that was understood."""

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(f"{problem} (try {command} --help)")
        self.command = command


class Parser(argparse.ArgumentParser):
    """Raises WrongUsage instead of printing and exiting, and suggests a similar word."""

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(self.prog, message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        suggestion = _suggestion(value, known)
        if isinstance(action, argparse._SubParsersAction):
            raise WrongUsage(self.prog, f"there is no {str(action.metavar).lower()} {value!r}{suggestion}")
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(known)}{suggestion}")


def _suggestion(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def build_parser(only: str | None = None) -> Parser:
    """The parser of the command line.  With ``only`` it has the arguments of that command and just the names of the
    others, so that their modules are not imported."""
    parser = Parser(
        prog="heliograph",
        description=DESCRIPTION,
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the installed version and exit")
    subparsers: options.Subparsers[argparse.ArgumentParser] = parser.add_subparsers(  # type: ignore[assignment]
        title="commands", metavar="COMMAND", dest="command"
    )
    for name, summary in commands.SUMMARIES.items():
        if only is None or name == only:
            module = importlib.import_module(commands.MODULES[name])
            if hasattr(module, "make_parser"):
                module.make_parser(subparsers)
            else:
                options.add_command(subparsers, name, summary, module, getattr(module, "LOG_LEVEL", "warning"))
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(f"heliograph {version()}\n")
        parser.exit()


def version() -> str:
    """The installed version."""
    import importlib.metadata

    try:
        return importlib.metadata.version("heliograph")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed; run it from an environment made by ./run)"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line.  Raises WrongUsage; SystemExit after printing the help or the version."""
    words = _without_help_command(words)
    called = called_command(words)
    parser = build_parser(only=called)
    args, rest = parser.parse_known_args(words)
    if args.command is None and not rest:
        parser.print_help(sys.stderr)
        parser.exit(exits.USAGE)
    if hasattr(args, "passed_on"):
        args.passed_on = rest
    elif rest:
        *_, last = parser_chain(parser, words)
        meant = _suggestion(rest[0], options_of(last)) if rest[0].startswith("-") else ""
        raise WrongUsage(
            f"heliograph {args.command or ''}".rstrip(), f"unrecognized arguments: {' '.join(rest)}{meant}"
        )
    return args


def called_command(words: Sequence[str]) -> str:
    """The first word that is no option; empty when there is none.  Options before a command take no value."""
    return next((word for word in words if not word.startswith("-")), "")


def _without_help_command(words: Sequence[str]) -> list[str]:
    """``help db set`` is ``db set --help``."""
    if words and words[0] == "help":
        return [*(word for word in words[1:] if word not in ("-h", "--help")), "--help"]
    return list(words)


def parser_chain(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[argparse.ArgumentParser]:
    """The parser, then that of the command in the words, then that of its verb."""
    yield parser
    for word in words:
        found = subparsers_of(parser).get(word)
        if found is not None:
            parser = found
            yield parser


def subparsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options that the help of a parser shows."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [text for action in shown for text in action.option_strings if text.startswith("--")]
