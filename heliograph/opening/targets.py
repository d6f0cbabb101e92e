"""Which bus, database, log and configuration a command uses when its words do not say.

In this order: an option; the context that ``--context`` names; a variable of the environment; the context that
``heliograph context use`` has chosen; and when none of these names anything, the file of the host, as for programs.  A
context or file that was used is named on standard error: one that nobody sees misleads.  Contexts are in one private
file of the user, because a URL may hold a password.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
from typing import Any

from heliograph import output, parsing

VARIABLES = {
    "bus": "HELIOGRAPH_BUS",
    "db": "HELIOGRAPH_DB",
    "log": "HELIOGRAPH_LOG",
    "config_file": "HELIOGRAPH_CONFIG",
}
"""What an argument is filled in from.  Several configuration files are separated as in ``PATH``."""

Context = dict[str, Any]
"""Argument -> its value; what a context does not say is not in it."""


def fill_in(args: argparse.Namespace) -> None:
    """Fill in what was not said.  Raises WrongUsage for a context that does not exist."""
    missing = [name for name in VARIABLES if hasattr(args, name) and not getattr(args, name)]
    if not hasattr(args, "context") or not missing:
        return
    name, context = _context(args, is_needed=not _is_said(args))
    used = {}
    for argument in missing:
        said = None if args.context else os.environ.get(VARIABLES[argument])
        if said:
            setattr(args, argument, said.split(os.pathsep) if argument == "config_file" else said)
        elif context.get(argument):
            setattr(args, argument, context[argument])
            used[argument] = context[argument]
    if used:
        output.note(f"heliograph {args.command}: context {name}: {described(used)}")
    if "config_file" in missing and not any(getattr(args, argument, None) for argument in VARIABLES):
        from pubsub_api import opening

        if opening.SYSTEM_FILE.is_file():
            args.config_file = [str(opening.SYSTEM_FILE)]
            output.note(f"heliograph {args.command}: {described({'config_file': args.config_file})}")


def _is_said(args: argparse.Namespace) -> bool:
    """Whether an option or a variable names something, and no context is asked for."""
    return not args.context and any(
        getattr(args, argument, None) or (hasattr(args, argument) and os.environ.get(variable))
        for argument, variable in VARIABLES.items()
    )


def _context(args: argparse.Namespace, *, is_needed: bool) -> tuple[str, Context]:
    """Raises WrongUsage.  A file that cannot be read is only told of when the command can do without it."""
    try:
        known = ContextFile().read()
    except (OSError, ValueError) as error:
        problem = f"{ContextFile().path} cannot be read: {error}"
        if is_needed:
            raise parsing.WrongUsage("heliograph context", problem) from error
        output.note(f"heliograph {args.command}: no context is used: {problem}")
        return "", {}
    name = args.context or known.current
    if not name:
        return "", {}
    if name not in known.contexts:
        raise parsing.WrongUsage(
            "heliograph context",
            f"there is no context {name!r}; there are: {', '.join(sorted(known.contexts)) or 'none'}",
        )
    return name, known.contexts[name]


def described(context: Context) -> str:
    """As options of a command line, without passwords."""
    words = []
    for argument, value in context.items():
        for one in value if isinstance(value, list) else [value]:
            words.append(f"--{argument.replace('_', '-')} {re.sub(r'//[^/@]*@', '//***@', one)}")
    return " ".join(words)


class Contexts:
    """What the file holds."""

    def __init__(self, current: str, contexts: dict[str, Context]) -> None:
        self.current = current
        self.contexts = contexts


class ContextFile:
    """``heliograph/contexts.json`` in the user's directory for configurations."""

    def __init__(self) -> None:
        home = os.environ.get("XDG_CONFIG_HOME") or pathlib.Path("~/.config").expanduser()
        self.path = pathlib.Path(home, "heliograph", "contexts.json")

    def read(self) -> Contexts:
        """Empty when there is none.  Raises OSError, ValueError."""
        try:
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return Contexts("", {})
        except RecursionError as error:
            raise ValueError(str(error)) from error
        try:
            return Contexts(str(found["current"]), {str(name): dict(one) for name, one in found["contexts"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no file of contexts: {error!r}") from error

    def write(self, contexts: Contexts) -> None:
        """It appears whole or not at all, for the user only.  Raises OSError, UnsafeFile."""
        from pubsub_api.runtime.files import replace_private

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"current": contexts.current, "contexts": contexts.contexts}, indent=2)
        replace_private(self.path, text.encode() + b"\n")
