"""Every command: the folder of its module, and a summary of a few words.

The module of a command has the command's name, with ``_`` for ``-``.  It defines the help texts ``DESCRIPTION`` and
``EXAMPLES``, optionally ``LOG_LEVEL``, then ``add_arguments(parser)``, and ``run(args, output) -> int``, which does the
work and returns the exit code; a command with verbs sets ``run`` for each verb.  Only the module of the called command
is imported, so that the help, an error about a wrong word and Ctrl-C do not wait for libraries.
"""

from __future__ import annotations

_FOLDERS = {
    "bus": {
        "cache": "run a reliability cache",
        "decode": "show captured frames",
        "drivers": "list installed drivers and what they can do",
        "publish": "send events",
        "subscribe": "print events as they arrive",
    },
    "objects": {
        "controller": "follow objects and print their changes",
        "db": "read, change and watch objects",
        "verify": "prove that a copy is equal to the database",
    },
    "history": {
        "durability": "ask durability services",
        "group": "share events between consumers",
        "log": "keep, read and maintain published events",
        "pipeline": "run a job on Spark over recorded events",
    },
    "services": {
        "console": "serve a web page with the state of all parts",
        "durability-service": "keep history for late joiners",
        "fleet": "list processes: which are behind, deaf, silent, old",
        "publisher-service": "publish for all workers of this host",
        "status": "show the state of the publisher service",
        "top": "watch the fleet live",
    },
    "setup": {
        "completion": "print a script for completion in a shell",
        "context": "name a bus, a database and a log for later use",
    },
    "trials": {
        "bench": "run the benchmarks of a checkout",
        "demo": "show the product at work under faults, with a proof",
        "doctor": "find what is wrong and how to fix it",
        "simulate": "check the guarantees in a simulated network",
    },
}

SUMMARIES = dict(sorted((name, text) for folder in _FOLDERS.values() for name, text in folder.items()))
"""Every command, for `heliograph --help`."""

MODULES = {
    name: f"{__name__}.{folder}.{name.replace('-', '_')}" for folder, found in _FOLDERS.items() for name in found
}
"""Command -> the full name of its module."""
