"""The entry point: finds the command, runs it, and turns whatever happens into output and an exit code.

Commands are the modules of `heliograph.commands`.  Their errors end here: one line on standard error, the traceback
only with ``--debug``.  SIGINT and SIGTERM unwind the command as KeyboardInterrupt, so that its ``with`` blocks close
what they opened.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import logging
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType

from heliograph import commands, exits, output
from pubsub_api.errors import HeliographError

DESCRIPTION = """\
Tells many controllers, quickly and reliably, what changed in a database.

New here?  `heliograph demo` shows it at work in less than a minute and needs no set-up.
Trouble?   `heliograph doctor` looks at everything and says how to fix it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code, see `heliograph.exits`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an old terminal must not fail on a name it cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        args = _parse(argv)
    except SystemExit as end:  # argparse has said what is wrong, or has shown the help that was asked for
        return end.code if isinstance(end.code, int) else exits.USAGE
    with _signals(), _logging(args.log_level):
        return _run(args)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="heliograph",
        description=DESCRIPTION,
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"heliograph {version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in _command_modules():
        module.register(subparsers)
    return parser


def version() -> str:
    """The installed version."""
    try:
        return importlib.metadata.version("heliograph")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed; run it from an environment made by ./run)"


def _command_modules() -> list[ModuleType]:
    names = sorted(found.name for found in pkgutil.iter_modules(commands.__path__))
    return [importlib.import_module(f"{commands.__name__}.{name}") for name in names if not name.startswith("_")]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if args.command is None and not rest:
        parser.print_help(sys.stderr)
        parser.exit(exits.USAGE)
    if hasattr(args, "passed_on"):
        args.passed_on = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)} (try --help)")
    return args


def _run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except HeliographError as error:
        return _failed(args, exits.explain(error), exits.code_for(error))
    except KeyboardInterrupt:
        return _failed(args, "interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return exits.INTERRUPTED
    except OSError as error:
        return _failed(args, f"the operating system refused it: {error}", exits.ENVIRONMENT)
    except Exception as error:  # noqa: BLE001  a bug of ours: named as one, and never silent
        problem = f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)"
        return _failed(args, problem, exits.FAILED)
    return code


def _failed(args: argparse.Namespace, problem: str, code: int) -> int:
    """Say what went wrong, after whatever was printed before.  Called while the exception is handled."""
    try:
        sys.stdout.flush()
    except OSError:  # it may even be the reason; standard error still gets the line
        _abandon_stdout()
    if args.debug:
        traceback.print_exc()
    output.note(f"heliograph {args.command}: {problem}")
    return code


def _abandon_stdout() -> None:
    """Our output goes nowhere any more: make sure that the interpreter's last flush does not complain about it."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does.  Only the main thread may say so; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _logging(level: str) -> Iterator[None]:
    root = logging.getLogger()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    previous = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous)
