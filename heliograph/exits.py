"""The exit codes of every command, and which error leads to which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub_api.errors import HeliographError

OK = 0
FAILED = 1
USAGE = 2
ENVIRONMENT = 3
INTERRUPTED = 130

EPILOG = """\
exit codes:
  0    done
  1    a problem was found, or the work failed
  2    wrong usage: an argument, a configuration or an event that can never work
  3    the environment: a library is missing, a server or peer is absent, an address is taken
  130  interrupted by a signal, or the reader of the output has ended
"""

_BY_FAULT = {"caller": USAGE, "environment": ENVIRONMENT, "peer": FAILED}


def code_for(error: HeliographError) -> int:
    """The exit code for an error, by its ``fault``."""
    return _BY_FAULT[error.fault]


def on_one_line(error: HeliographError) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())


def classify(error: HeliographError) -> str:
    """For ``--verbose``: the class of an error, which side caused it, and whether trying again can help."""
    blame = {"caller": "the request", "environment": "the environment", "peer": "the sender"}[error.fault]
    retry = "trying again can help" if error.retriable else "trying again does not help"
    return f"[{type(error).__name__}; the fault is with {blame}; {retry}]"


def error_record(error: Exception | None, problem: str, code: int) -> dict[str, Any]:
    """An error for scripts.  It has ``fault`` and ``retriable`` when it is one of `pubsub_api.errors`."""
    found: dict[str, Any] = {"message": problem, "exit_code": code}
    if error is not None:
        found["class"] = type(error).__name__
        found |= {name: getattr(error, name) for name in ("fault", "retriable") if hasattr(error, name)}
    return {"error": found}
