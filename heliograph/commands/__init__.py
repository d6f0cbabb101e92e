"""One module per command.

A module here is a command when its name has no leading underscore.  It has ``register(subparsers)``, which adds its
parser, and ``run(args) -> int``, which does the work and returns the exit code.  Nothing else needs to know of it.
"""
