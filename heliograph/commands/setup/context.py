"""``heliograph context``: names for buses, databases, logs and configurations that commands use."""

from __future__ import annotations

import argparse
from typing import NoReturn

from heliograph import exits, options
from heliograph.opening import targets
from heliograph.output import Output

DESCRIPTION = """\
Name a bus, a database, a log and configuration files once, and use them by that name.

  add     make a context, or replace it; the first one is put into use
  list    list every context; the one in use has a star
  use     put a context into use: commands take from it what their options do not name
  clear   put no context into use
  remove  remove a context

An option wins over --context NAME, --context NAME wins over HELIOGRAPH_BUS, HELIOGRAPH_DB, HELIOGRAPH_LOG and
HELIOGRAPH_CONFIG, and these win over the context in use.  A command that uses a context says so on standard error.

Contexts are in heliograph/contexts.json under $XDG_CONFIG_HOME (~/.config), which only you can read.
"""
EXAMPLES = """\
  heliograph context add prod --bus redis://10.0.0.5:6379/0 --db postgresql://10.0.0.6/objects
  heliograph context list --json
  heliograph context use prod
  heliograph context clear --json
  heliograph context remove prod
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, verb in options.add_verbs(parser, _VERBS, description=DESCRIPTION, examples=EXAMPLES):
        if name in ("add", "use", "remove"):
            verb.add_argument("name", metavar="NAME", help="the context")
        if name == "add":
            options.add_bus(verb, "driver and address of the bus")
            verb.add_argument("--db", metavar="URL", help="the database, as in sqlite:///tmp/objects.db")
            verb.add_argument("--log", metavar="URL", help="the durable log, as in sqlite:///dir/log.db")
            options.add_config_file(verb, "read options from FILE; may be repeated, later files win")
        options.add_json(verb, "JSON objects, one per line")
        verb.set_defaults(run=run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError, UnsafeFile."""
    file = targets.ContextFile()
    try:
        known = file.read()
    except ValueError as error:
        _refuse(f"{file.path}: {error}; remove the file to begin anew")
    if _VERBS[args.verb](args, known):
        file.write(known)
    for name, context in sorted(known.contexts.items()):
        star = "*" if name == known.current else " "
        output.result(
            {"name": name, "is_current": name == known.current, **context},
            f"{star} {name} {targets.as_options(context)}",
        )
    if not known.contexts:
        output.flush()
        if not output.is_json:
            output.line("there is no context: heliograph context add NAME --bus URL makes one")
    return exits.OK


def _add(args: argparse.Namespace, known: targets.Contexts) -> bool:
    if not args.name.isprintable() or not args.name.strip():
        _refuse(f"{args.name!r} is no name of a context")
    context = {name: getattr(args, name) for name in targets.VARIABLES if getattr(args, name)}
    if not context:
        _refuse("a context needs at least one of --bus, --db, --log and --config-file")
    for name in ("bus", "db", "log"):
        if "://" not in (url := context.get(name, "://")):
            _refuse(f"--{name} {url!r} is no URL: write driver://...")
    known.contexts[args.name] = context
    known.current = known.current or args.name
    return True


def _list(_args: argparse.Namespace, _known: targets.Contexts) -> bool:
    return False


def _use(args: argparse.Namespace, known: targets.Contexts) -> bool:
    _find(args.name, known)
    known.current = args.name
    return True


def _clear(_args: argparse.Namespace, known: targets.Contexts) -> bool:
    known.current = ""
    return True


def _remove(args: argparse.Namespace, known: targets.Contexts) -> bool:
    _find(args.name, known)
    del known.contexts[args.name]
    known.current = "" if known.current == args.name else known.current
    return True


def _find(name: str, known: targets.Contexts) -> None:
    if name not in known.contexts:
        _refuse(f"there is no context {name!r}; there are: {', '.join(sorted(known.contexts)) or 'none'}")


def _refuse(problem: str) -> NoReturn:
    from pubsub_api.errors import UsageError

    raise UsageError(problem)


_VERBS = {"add": _add, "list": _list, "use": _use, "clear": _clear, "remove": _remove}
"""Each changes the contexts, and returns whether it has changed any."""
