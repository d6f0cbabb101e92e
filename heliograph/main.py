"""The entry point: finds the command, runs it, and turns whatever happens into output and an exit code.

Commands are the modules of `heliograph.commands`.  Their errors end here: one line on standard error, or one JSON
object there with ``--json``; the traceback only with ``--debug``.  SIGINT and SIGTERM unwind the command as
KeyboardInterrupt, so that its ``with`` blocks close what they opened.  Only the standard library is imported here, so
that signals are in good hands from early on.
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
            targets.fill_in(args)
        except parsing.WrongUsage as error:
            return _complain(error.command, None, str(error), exits.USAGE, is_json="--json" in words)
        except SystemExit as end:  # the help or the version was asked for, and shown
            return end.code if isinstance(end.code, int) else exits.USAGE
        except KeyboardInterrupt:  # libraries were being imported
            output.note("heliograph: interrupted")
            return exits.INTERRUPTED
        return _run(args)


def _prepare_streams() -> None:
    if sys.stdout is None:  # closed by the parent process, which does not want to see it
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
    except Exception as error:  # noqa: BLE001  told, whatever it is
        return _failed(args, *_judge(error, is_verbose=args.verbose or args.debug), error=error)
    return code


def _judge(error: Exception, *, is_verbose: bool) -> tuple[str, int]:
    """What to say of an error, and the exit code for it."""
    from pubsub_api.errors import HeliographError  # imported here, because help and Ctrl-C need none

    if isinstance(error, HeliographError):  # first, because some of them are OSErrors as well
        told = exits.explain(error)
        return f"{told} {exits.judge(error)}" if is_verbose else told, exits.code_for(error)
    if isinstance(error, OSError):
        return f"the operating system refused it: {error}", exits.ENVIRONMENT
    # A bug of ours: named as one, and never silent.
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)", exits.FAILED


def _failed(args: argparse.Namespace, problem: str, code: int, *, error: Exception | None = None) -> int:
    """Say what went wrong, after whatever was printed before.  Called while the exception is handled."""
    try:
        sys.stdout.flush()
    except OSError:  # it may even be the reason; standard error still gets the line
        _abandon_stdout()
    if args.debug:
        traceback.print_exc()
    return _complain(f"heliograph {args.command}", error, problem, code, is_json=getattr(args, "json", False))


def _complain(command: str, error: Exception | None, problem: str, code: int, *, is_json: bool) -> int:
    output.note(output.dumps(exits.record(error, problem, code)) if is_json else f"{command}: {problem}")
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
