"""``heliograph log export`` and ``heliograph log import``: events of a log in files."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib

from heliograph import exits
from heliograph.logs.reading import add_filters, add_shard, add_since, opened, shards_of
from heliograph.opening.logs import opened_log
from heliograph.output import Output, counted
from heliograph.terminal.progress import progress_of

_FILE = "JSON lines when its name ends with .jsonl, Parquet when it ends with .parquet"


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=pathlib.Path, help=f"must not exist; {_FILE}")
    add_filters(parser)
    add_shard(parser)
    add_since(parser, "only events since a time, as in 2026-11-16T10:00 (UTC) or 2h (ago)")


def run_export(args: argparse.Namespace, output: Output) -> int:
    from durable_log.transfer.exporting import export

    with opened(args) as log, progress_of("offsets") as on_progress:
        states = log.state()
        starts = {shard: states[shard].start for shard in shards_of(args, log)}
        if args.since is not None:
            since_ns = args.since.ns(log.now_ns())
            starts = {shard: log.find(shard, since_ns) for shard in starts}
        found = export(log, args.file, starts=starts, filters=args.filters or ["#"], on_progress=on_progress)
    dropped = f"; retention dropped {counted(found.dropped, 'offset')} meanwhile" if found.dropped else ""
    output.result(
        {"file": str(args.file), **dataclasses.asdict(found)},
        f"wrote {counted(found.events, 'event')} in {counted(found.frames, 'frame')} to {args.file}, "
        f"{counted(found.bytes, 'byte')}{dropped}",
    )
    return exits.OK


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=pathlib.Path, help=f"a file of 'export'; {_FILE}")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be appended")


def run_import(args: argparse.Namespace, output: Output) -> int:
    from durable_log import LogNotFound
    from durable_log.transfer.importing import import_file, try_import

    with contextlib.ExitStack() as stack:
        log = None
        with contextlib.suppress(LogNotFound) if args.dry_run else contextlib.nullcontext():
            log = stack.enter_context(opened_log(args, must_exist=args.dry_run))
        on_progress = stack.enter_context(progress_of("read"))
        if log is None or args.dry_run:
            found = try_import(log, args.file, on_progress=on_progress)
        else:
            found = import_file(log, args.file, on_progress=on_progress)
    does = "would append" if args.dry_run else "appended"
    output.result(
        {"file": str(args.file), "dry_run": args.dry_run, **dataclasses.asdict(found)},
        f"{does} {counted(found.events, 'event')}; the log had {counted(found.duplicates, 'event')} already",
    )
    return exits.OK
