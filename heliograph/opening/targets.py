"""Which bus, database, log and configuration a command uses when its options do not name them.

The first of these that names one wins: an option; the context that ``--context`` names; a variable of the environment;
the context that ``heliograph context use`` has chosen.  When none of them names anything, the configuration file of the
host is read, as programs do.  A command prints on standard error which context or file it has used, so that a user is
not misled by a forgotten one.  Contexts are in one private file of the user, because a URL may hold a password.
"""

from __future__ import annotations

import argparse
import dataclasses
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
"""Argument -> the variable of the environment that gives it.  Configuration files are separated as in ``PATH``."""

Context = dict[str, Any]
"""Argument -> its value; arguments that the context does not name are left out."""


def fill_in_targets(args: argparse.Namespace) -> None:
    """Fill in the arguments that were not given.  Raises WrongUsage for a context that does not exist."""
    missing = [name for name in VARIABLES if hasattr(args, name) and not getattr(args, name)]
    if not hasattr(args, "context") or not missing:
        return
    name, context = _context(args, is_needed=not _names_target(args))
    used = {}
    for argument in missing:
        value = None if args.context else os.environ.get(VARIABLES[argument])
        if value:
            setattr(args, argument, value.split(os.pathsep) if argument == "config_file" else value)
        elif context.get(argument):
            setattr(args, argument, context[argument])
            used[argument] = context[argument]
    if used:
        output.note(f"heliograph {args.command}: context {name}: {as_options(used)}")
    if "config_file" in missing and not any(getattr(args, argument, None) for argument in VARIABLES):
        from pubsub_api import opening

        if opening.SYSTEM_FILE.is_file():
            args.config_file = [str(opening.SYSTEM_FILE)]
            output.note(f"heliograph {args.command}: {as_options({'config_file': args.config_file})}")


def _names_target(args: argparse.Namespace) -> bool:
    """Whether an option or a variable names a target, and ``--context`` is not given."""
    return not args.context and any(
        getattr(args, argument, None) or (hasattr(args, argument) and os.environ.get(variable))
        for argument, variable in VARIABLES.items()
    )


def _context(args: argparse.Namespace, *, is_needed: bool) -> tuple[str, Context]:
    """The name and content of the context in use; empty without one.

    Raises WrongUsage for an unknown context, and for an unreadable file when the command needs a context; when it
    does not, an unreadable file is only noted on standard error.
    """
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


def as_options(context: Context) -> str:
    """The context written as command-line options, without passwords."""
    words = []
    for argument, value in context.items():
        for one in value if isinstance(value, list) else [value]:
            words.append(f"--{argument.replace('_', '-')} {re.sub(r'//[^/@]*@', '//***@', one)}")
    return " ".join(words)


@dataclasses.dataclass
class Contexts:
    """The content of the file: all contexts by name, and the name of the one in use or an empty string."""

    current: str
    contexts: dict[str, Context]


class ContextFile:
    """``heliograph/contexts.json`` in the user's directory for configurations."""

    def __init__(self) -> None:
        home = os.environ.get("XDG_CONFIG_HOME") or pathlib.Path("~/.config").expanduser()
        self.path = pathlib.Path(home, "heliograph", "contexts.json")

    def read(self) -> Contexts:
        """The contexts; none when there is no file.  Raises OSError, ValueError."""
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
        """Replace the file at once, readable for the user only.  Raises OSError, UnsafeFile."""
        from pubsub_api.runtime.files import replace_private

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"current": contexts.current, "contexts": contexts.contexts}, indent=2)
        replace_private(self.path, text.encode() + b"\n")
