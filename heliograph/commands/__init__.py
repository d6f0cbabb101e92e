"""Every command: where its module is, and what it does in a few words.

The module of a command has its name, with ``_`` for ``-``, in the folder that the table says.  It has the texts
``DESCRIPTION`` and ``EXAMPLES`` of its help, perhaps a ``LOG_LEVEL``, ``add_arguments(parser)``, and ``run(args,
output) -> int``, which does the work and returns the exit code; a command with verbs sets ``run`` for each of them.
Only the module of the command that was called is imported: a help or a wrong word must not wait for libraries, and
neither must Ctrl-C.
"""

from __future__ import annotations

_FOLDERS = {
    "bus": {
        "cache": "run a reliability cache",
        "decode": "show captured frames",
        "drivers": "list installed drivers and what they can do",
        "publish": "send events",
        "subscribe": "print events as they come",
    },
    "objects": {
        "controller": "follow objects and print what changes",
        "db": "look at objects, change and watch them",
        "verify": "prove that a copy is equal to the database",
    },
    "history": {
        "durability": "ask durability services",
        "group": "share events between consumers",
        "log": "keep, read and maintain what was published",
        "pipeline": "run a job on Spark over what was recorded",
    },
    "services": {
        "durability-service": "keep history for late joiners",
        "fleet": "list processes: who is behind, deaf, silent, old",
        "publisher-service": "publish for all workers of this host",
        "status": "ask the publisher service how it is",
        "top": "watch the fleet live",
    },
    "setup": {
        "completion": "print what makes a shell complete commands",
        "context": "give a bus, a database and a log a name",
    },
    "trials": {
        "bench": "run the benchmarks of a checkout",
        "demo": "see it work, under faults, with a proof at the end",
        "doctor": "find what is wrong and say how to fix it",
        "simulate": "check the guarantees in a simulated network",
    },
}

SUMMARIES = dict(sorted((name, text) for folder in _FOLDERS.values() for name, text in folder.items()))
"""Every command, for `heliograph --help`."""

MODULES = {
    name: f"{__name__}.{folder}.{name.replace('-', '_')}" for folder, found in _FOLDERS.items() for name in found
}
"""Command -> the full name of its module."""
