"""``heliograph db``: read, change and watch objects in a database."""

from __future__ import annotations

import argparse
import collections
import math
import textwrap
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.opening.databases import add_database, object_line, object_record, open_nb
from heliograph.output import Output, Payload, compact, note
from pubsub_api.errors import UsageError, WaitTimeout

if TYPE_CHECKING:
    from nb_api import Change, NbApi

DESCRIPTION = """\
Read, change and watch the objects in a database.

It writes as every program does: the object gets a new version, and with a bus ([pubsub] enable_df_pub_sub, or --bus)
the change is published.  A change that is stored but cannot be published now stays in the outbox, and the sweeper
publishes it later; the command then says so and ends with exit code 3.
"""
EXAMPLES = """\
  heliograph db create port p1 '{"up": false}' --topic tenant-7 --db sqlite:///tmp/objects.db
  heliograph db get port p1
  heliograph db set port p1 '{"up": true}' --expected-version 5412419 --config-file /etc/heliograph/heliograph.conf
  heliograph db list port --topics 'tenant-7/#' --json
  heliograph db delete port p1 --expected-version 2
  heliograph db watch --tables port --count 10
  heliograph db compact --keep-changes 10000 --keep-tombstones 7d
  heliograph db snapshot /data/snapshots/monday --db sqlite:///tmp/objects.db
"""
_WAIT_S = 0.5
_WRITING = frozenset({"create", "set", "delete"})
_PORTION = 1000

_VERBS: dict[str, tuple[str, str]] = {
    "get": ("print one object", "Print an object.  Exit code 2 when there is none."),
    "list": (
        "print the objects of a table, or the tables",
        "Print the objects of a table, as of one moment; without a table, the tables and how many objects they have.",
    ),
    "create": ("add an object", "Add an object.  Exit code 2 when it exists.  Prints its version."),
    "set": (
        "change an object",
        "Give an object a new value.  Exit code 2 when there is none, unless --create is given.  A value equal to the "
        "stored one changes nothing and is not published.",
    ),
    "delete": ("remove an object", "Remove an object.  Its tombstone has a version too, which is printed."),
    "watch": (
        "print changes as they are committed",
        "Print the database's own feed of changes, in commit order, from now on or from a revision.",
    ),
    "compact": (
        "forget old changes and tombstones",
        "Forget old changes.  A reader that has not read them yet reads all objects instead.",
    ),
    "snapshot": (
        "write the objects to files that controllers can resync from",
        "Write all objects to a new directory, or bring a snapshot of `heliograph pipeline compact` up to date with "
        "the database.  Controllers with resync_source = snapshot load it, and then read only later changes.",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    made = {
        name: options.add_parser(
            verbs, name, summary, textwrap.fill(description, 120), options.examples_of(name, EXAMPLES)
        )
        for name, (summary, description) in _VERBS.items()
    }
    for verb in made.values():
        add_database(verb)
        options.add_json(verb, "JSON objects, one per line")
    for name in ("get", "create", "set", "delete"):
        made[name].add_argument("table", metavar="TABLE", help="kind of the object")
        made[name].add_argument("key", metavar="KEY", help="which object of the table")
    for name in ("create", "set"):
        made[name].add_argument("value", metavar="JSON", help="the value")
    made["create"].add_argument("--topic", required=True, help="the topic of the object, as in tenant-7/port")
    made["set"].add_argument("--topic", help="move it to another topic")
    made["set"].add_argument("--create", action="store_true", help="create it when there is none; needs --topic")
    for name in ("set", "delete"):
        made[name].add_argument(
            "--expected-version", metavar="N", type=options.natural_int, help="only when the object has this version"
        )
    for name in ("create", "set", "delete"):
        made[name].add_argument(
            "--flush-timeout", metavar="TIME", type=options.seconds, default=10.0,
            help="how long to wait until the change is published (default: 10s)",
        )  # fmt: skip
    made["list"].add_argument("table", metavar="TABLE", nargs="?", help="only this table")
    made["snapshot"].add_argument("directory", metavar="DIR", help="the directory of the snapshot")
    _add_watch(made["watch"])
    for name in ("list", "watch"):
        made[name].add_argument("--topics", metavar="FILTER", nargs="+", help="only these, as in 'tenant-7/#'")
    made["compact"].add_argument(
        "--keep-changes", metavar="N", type=options.natural_int, default=100_000,
        help="how many of the newest changes to keep (default: %(default)s)",
    )  # fmt: skip
    made["compact"].add_argument(
        "--keep-tombstones", metavar="TIME", type=options.seconds, default=86_400.0,
        help="how long tombstones are kept (default: 1d)",
    )  # fmt: skip
    for verb in made.values():
        options.add_troubleshooting(verb)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", metavar="TABLE", nargs="+", help="only these tables")
    parser.add_argument("--after", metavar="REVISION", type=options.natural_int, help="begin after this revision")
    parser.add_argument("--count", metavar="N", type=options.positive_int, help="end after N changes")
    options.add_timeout(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    _check(args)
    is_making = args.verb == "create" or (args.verb == "set" and args.create)
    with open_nb(args, must_exist=not is_making) as nb:
        if args.verb not in _WRITING and nb.db.revision() == 0:  # a mistyped URL looks like this
            note("heliograph db: nothing was ever written to this database")
        return _RUN[args.verb](nb, args, output)


def _check(args: argparse.Namespace) -> None:
    """Refuse wrong arguments before anything is connected to.  Raises UsageError, InvalidTopic, InvalidObject."""
    from nb_api.core.checks import TopicSelection, check_object
    from pubsub_api.core.topics import check_topic

    if args.verb in _WRITING | {"get"}:
        check_object(args.table, args.key)
    if getattr(args, "topic", None) is not None:
        check_topic(args.topic)
    if args.verb in ("create", "set"):
        try:
            args.value = options.json_value(args.value)
        except ValueError as error:
            raise UsageError(f"the value {args.value[:80]!r} is not JSON: {error}") from error
    if args.verb == "set" and args.create and (args.topic is None or args.expected_version is not None):
        raise UsageError("--create needs --topic, and does not go with --expected-version")
    if args.verb in ("list", "watch"):
        TopicSelection(None, args.topics)


def _get(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    output.result(object_record(found := nb.get(args.table, args.key)), object_line(found))
    return exits.OK


def _list(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    if args.table is None:
        with nb.db.snapshot(topics=args.topics) as snapshot:
            counts = collections.Counter(found.table for found in snapshot)
        for table, count in sorted(counts.items()):
            output.result({"table": table, "objects": count}, f"{table} {count:,}")
        if not counts and nb.db.revision():
            note("heliograph db: there are no objects")
        return exits.OK
    found = nb.get_all(args.table, topics=args.topics)
    for one in found:
        output.result(object_record(one), object_line(one))
    if not found:
        _note_no_table(nb, args.table)
    return exits.OK


def _note_no_table(nb: NbApi, table: str) -> None:
    """A mistyped table looks like an empty one, because a table exists as long as it has objects: list the others."""
    with nb.db.snapshot() as snapshot:
        tables = sorted({found.table for found in snapshot})
    if table not in tables:
        note(f"heliograph db: no object is in a table {table!r}; tables with objects: {', '.join(tables) or 'none'}")


def _create(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    version = nb.create(args.table, args.key, args.value, topic=args.topic)
    return _written(nb, output, args, version, "created")


def _set(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    if args.create:
        version = nb.put(args.table, args.key, args.value, topic=args.topic)
    else:
        version = nb.update(
            args.table, args.key, args.value, topic=args.topic, expected_version=args.expected_version
        )  # fmt: skip
    return _written(nb, output, args, version, "unchanged" if nb.statistics().unchanged else "set")


def _delete(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    version = nb.delete(args.table, args.key, expected_version=args.expected_version)
    return _written(nb, output, args, version, "deleted")


_WRITTEN = {
    "created": "has version {version} now",
    "set": "has version {version} now",
    "unchanged": "is unchanged, version {version}: it has that value already",
    "deleted": "is deleted; its tombstone has version {version}",
}


def _written(nb: NbApi, output: Output, args: argparse.Namespace, version: int, what: str) -> int:
    """Print what was stored, then wait until it is published.  Raises WaitTimeout when it is not published yet."""
    output.result(
        {"table": args.table, "key": args.key, "version": version, "result": what},
        f"{args.table}/{args.key} {_WRITTEN[what].format(version=version)}",
    )
    output.flush()
    nb.flush(timeout_s=args.flush_timeout)
    left = nb.statistics().handover.left
    if left:
        raise WaitTimeout(f"version {version} is stored and could not be published now; the outbox keeps it")
    return exits.OK


def _watch(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    from nb_api.core.checks import TopicSelection

    selection = TopicSelection(args.tables, args.topics)
    after = nb.db.revision() if args.after is None else _known_revision(nb, args.after)
    deadline = math.inf if args.timeout is None else time.monotonic() + args.timeout
    printed = 0
    while (left_s := deadline - time.monotonic()) > 0:
        if not nb.db.wait(after, timeout_s=min(left_s, _WAIT_S)):
            continue
        for change in nb.db.changes(after, limit=_PORTION):
            after = change.revision
            topics = (change.topic, change.left_topic or change.topic)
            if any(selection.selects(change.table, topic) for topic in topics):
                output.result(_change_record(change), _change_line(change))
                printed += 1
            if printed == args.count:
                return exits.OK
        output.flush()
    if args.count is not None:
        note(f"heliograph db: {printed} of {args.count} changes came within {args.timeout} s")
        return exits.FAILED
    return exits.OK


def _known_revision(nb: NbApi, revision: int) -> int:
    """Raises UsageError for a revision that the database never had, or whose later changes it has forgotten."""
    from nb_api.errors import RevisionUnknown

    try:
        nb.db.changes(revision, limit=1)
    except RevisionUnknown:
        raise UsageError(
            f"--after {revision}: no change of this database has that revision; 'heliograph db watch --after 0' shows "
            "those that are kept"
        ) from None
    return revision


def _compact(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    gone = nb.db.compact(keep_changes=args.keep_changes, keep_tombstones_s=args.keep_tombstones)
    output.result({"forgotten": gone}, f"{gone:,} changes forgotten")
    return exits.OK


def _snapshot(nb: NbApi, args: argparse.Namespace, output: Output) -> int:
    from nb_api.cache.snapshot_source import load_source

    load_source("snapshot")  # raises an error that names a missing library
    from nb_api.cache.snapshot_files import complete, is_complete

    if is_complete(args.directory):
        raise UsageError(f"{args.directory} is a complete snapshot already: name another directory")
    manifest = complete(args.directory, nb.db)
    output.result(
        {"objects": manifest.objects, "revision": manifest.revision},
        f"{manifest.objects:,} objects as of revision {manifest.revision} in {args.directory}",
    )
    return exits.OK


_RUN: dict[str, Callable[[NbApi, argparse.Namespace, Output], int]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "set": _set,
    "delete": _delete,
    "watch": _watch,
    "compact": _compact,
    "snapshot": _snapshot,
}


def _change_record(change: Change) -> dict[str, Any]:
    record = {
        "revision": change.revision,
        "action": change.action,
        "table": change.table,
        "key": change.key,
        "topic": change.topic,
        "value": Payload(change.value),
    }
    return record if change.left_topic is None else {**record, "left_topic": change.left_topic}


def _change_line(change: Change) -> str:
    moved = "" if change.left_topic is None else f" (from {change.left_topic})"
    value = "" if change.action == "delete" else f" {compact(change.value)}"
    return f"{change.revision} {change.action} {change.table}/{change.key} {change.topic}{moved}{value}"
