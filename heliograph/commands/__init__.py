"""One module per command, and what each does in a few words.

The module of a command has its name, with ``_`` for ``-``.  It has the texts ``DESCRIPTION`` and ``EXAMPLES`` of its
help, perhaps a ``LOG_LEVEL``, ``add_arguments(parser)``, and ``run(args, output) -> int``, which does the work and
returns the exit code; a command with verbs sets ``run`` for each of them.  Only the module of the command that was
called is imported: a help or a wrong word must not wait for libraries, and neither must Ctrl-C.
"""

SUMMARIES = {
    "bench": "run the benchmarks of a checkout",
    "cache": "run a reliability cache",
    "controller": "follow objects and print what changes",
    "db": "look at objects, change and watch them",
    "decode": "show captured frames",
    "demo": "see it work, under faults, with a proof at the end",
    "doctor": "find what is wrong and say how to fix it",
    "drivers": "list installed drivers and what they can do",
    "durability": "ask durability services",
    "durability-service": "keep history for late joiners",
    "group": "share events between consumers",
    "log": "keep, read and maintain what was published",
    "pipeline": "run a job on Spark over what was recorded",
    "publish": "send events",
    "publisher-service": "publish for all workers of this host",
    "simulate": "check the guarantees in a simulated network",
    "status": "ask the publisher service how it is",
    "subscribe": "print events as they come",
}
"""Every command, for `heliograph --help`."""
