"""The entry point: finds the command, runs it, and turns whatever happens into output and an exit code.

Commands are the modules of `heliograph.commands`.  Their errors end here: one line on standard error, the traceback
only with ``--debug``.  SIGINT and SIGTERM unwind the command as KeyboardInterrupt, so that its ``with`` blocks close
what they opened.  Only the standard library is imported here, so that signals are in good hands from early on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from heliograph import commands, exits, options, output

DESCRIPTION = """\
Tells many controllers, quickly and reliably, what changed in a database.

New here?  `heliograph demo` shows it at work in less than a minute and needs no set-up.
Trouble?   `heliograph doctor` looks at everything and says how to fix it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code, see `heliograph.exits`."""
    _prepare_streams()
    with _signals():
        try:
            args = _parse(sys.argv[1:] if argv is None else argv)
        except SystemExit as end:  # argparse has said what is wrong, or has shown the help that was asked for
            return end.code if isinstance(end.code, int) else exits.USAGE
        except KeyboardInterrupt:  # libraries were being imported
            output.note("heliograph: interrupted")
            return exits.INTERRUPTED
        with _logging(args.log_level):
            return _run(args)


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or one that knows the arguments of a single command and just the names of the others."""
    parser = argparse.ArgumentParser(
        prog="heliograph",
        description=DESCRIPTION,
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the installed version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
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
    """Finds the version out only when it is asked for."""

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


def _prepare_streams() -> None:
    if sys.stdout is None:  # closed by the parent process, which does not want to see it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an old terminal must not fail on a name it cannot show
            stream.reconfigure(errors="backslashreplace")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    called = next((word for word in argv if not word.startswith("-")), "")  # options before it take no value
    parser = build_parser(only=called)
    args, rest = parser.parse_known_args(argv)
    if args.command is None and not rest:
        parser.print_help(sys.stderr)
        parser.exit(exits.USAGE)
    if hasattr(args, "passed_on"):
        args.passed_on = rest
    elif rest:
        command = f"heliograph {args.command or ''}".rstrip()
        parser.exit(exits.USAGE, f"{command}: unrecognized arguments: {' '.join(rest)} (try {command} --help)\n")
    return args


def _run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run(args, output.Output(is_json=getattr(args, "json", False)))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _failed(args, "interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return exits.INTERRUPTED
    except Exception as error:  # noqa: BLE001  told, whatever it is
        return _failed(args, *_judge(error))
    return code


def _judge(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code for it."""
    from pubsub_api.errors import HeliographError  # imported here, because help and Ctrl-C need none

    if isinstance(error, HeliographError):  # first, because some of them are OSErrors as well
        return exits.explain(error), exits.code_for(error)
    if isinstance(error, OSError):
        return f"the operating system refused it: {error}", exits.ENVIRONMENT
    # A bug of ours: named as one, and never silent.
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)", exits.FAILED


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
