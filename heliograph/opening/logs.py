"""Options of commands that use a durable log, and how they become an open `LogApi`."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable_log import LogApi


def add_log(parser: argparse._ActionsContainer, what: str = "the log, as in sqlite:///dir/log.db") -> None:
    parser.add_argument("--log", metavar="URL", help=f"{what} (default: [log] url); also HELIOGRAPH_LOG")


def opened_log(
    args: argparse.Namespace, *, must_exist: bool = True, ignores_shards: bool = False
) -> contextlib.closing[LogApi]:
    """The log that ``--log`` or ``--config-file`` names, for a ``with``.  Raises what `durable_log.open` raises."""
    import durable_log

    return contextlib.closing(
        durable_log.open(args.log, config_files=args.config_file, must_exist=must_exist, ignores_shards=ignores_shards)
    )
