"""The entry point: finds the command, runs it, and turns its result or its error into output and an exit code.

Commands are the modules of `heliograph.commands`.  Their errors end here: one line on standard error, or one JSON
object there with ``--json``; the traceback only with ``--debug``.  SIGINT and SIGTERM unwind the command as
KeyboardInterrupt, so that its ``with`` blocks close what they opened.  This module imports the standard library only,
so that signals are handled before the slower imports of a command begin.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from heliograph import exits, output, parsing
from heliograph.opening import targets
from heliograph.terminal import log_lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code, see `heliograph.exits`."""
    _prepare_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    with _signals():
        try:
            args = parsing.parse(words)
            targets.fill_in_targets(args)
        except parsing.WrongUsage as error:
            return _report_problem(error.command, None, str(error), exits.USAGE, is_json="--json" in words)
        except SystemExit as end:  # argparse has printed the help or the version
            return end.code if isinstance(end.code, int) else exits.USAGE
        except KeyboardInterrupt:  # libraries were being imported
            output.note("heliograph: interrupted")
            return exits.INTERRUPTED
        return _run(args)


def _prepare_streams() -> None:
    if sys.stdout is None:  # the parent process has closed it: it does not want the output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # an old terminal must not fail on a name it cannot show
            stream.reconfigure(errors="backslashreplace")


def _run(args: argparse.Namespace) -> int:
    try:
        with log_lines.written(args.log_format, args.log_level, getattr(args, "config_file", [])):
            code: int = args.run(args, output.Output(is_json=getattr(args, "json", False)))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _failed(args, "interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return exits.INTERRUPTED
    except Exception as error:  # noqa: BLE001  every error is reported
        return _failed(args, *_explain_error(error, is_verbose=args.verbose or args.debug), error=error)
    return code


def _explain_error(error: Exception, *, is_verbose: bool) -> tuple[str, int]:
    """The message for an error, and its exit code."""
    from pubsub_api.errors import HeliographError  # imported here: the help does not wait for it

    if isinstance(error, HeliographError):  # first, because some of them are OSErrors as well
        message = exits.on_one_line(error)
        return f"{message} {exits.classify(error)}" if is_verbose else message, exits.code_for(error)
    if isinstance(error, OSError):
        return f"the operating system refused it: {error}", exits.ENVIRONMENT
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)", exits.FAILED


def _failed(args: argparse.Namespace, problem: str, code: int, *, error: Exception | None = None) -> int:
    """Report what went wrong, behind the output so far.  Call it while the exception is handled."""
    try:
        sys.stdout.flush()
    except OSError:  # perhaps the very error that is reported
        _abandon_stdout()
    if args.debug:
        traceback.print_exc()
    return _report_problem(f"heliograph {args.command}", error, problem, code, is_json=getattr(args, "json", False))


def _report_problem(command: str, error: Exception | None, problem: str, code: int, *, is_json: bool) -> int:
    output.note(output.dumps(exits.error_record(error, problem, code)) if is_json else f"{command}: {problem}")
    return code


def _abandon_stdout() -> None:
    """Send the rest of the output to /dev/null, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does.  Python sets signal handlers in the main thread only; in another thread
    nothing changes."""
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
