"""``heliograph durability``: ask durability services, read and delete history, make snapshots and checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from heliograph import exits, options
from heliograph.opening.databases import add_db
from heliograph.opening.hosts import resolution_hint
from heliograph.output import Output, compact, event_record, note
from heliograph.terminal.confirming import is_confirmed
from pubsub_api.errors import HeliographError

if TYPE_CHECKING:
    from durability_service.client import DurabilityClient
    from durability_service.protocol import ServiceStatus
    from nb_api.db_api import DbApi
    from pubsub_api import Publisher

LOG = logging.getLogger(__name__)

DESCRIPTION = """\
Ask the durability services of a domain.

  status      name-spaces, masters, epochs, completeness, conflicts and peers; exit code 1 if something is wrong
  history     print the history of topics; exit code 1 when no complete set could be read
  delete      delete the history of topics in all services; it cannot be undone
  snapshot    make a service write the history of topics to its snapshot directory
  checkpoint  publish what services lack compared with a database, so that controllers can resync from them

Delete and snapshot need the [durability] admin_key of the services.
With zmq and other bind-based drivers --service names the addresses of services.
"""
EXAMPLES = """\
  heliograph durability status --bus redis://127.0.0.1:6379/0
  heliograph durability status --json --service tcp://127.0.0.1:8870 --bus zmq://127.0.0.1:8866
  heliograph durability history 'tenant-7/#' --bus redis://127.0.0.1:6379/0
  heliograph durability delete 'tenant-7/#' --config-file /etc/heliograph/heliograph.conf
  heliograph durability snapshot '#' --config-file /etc/heliograph/heliograph.conf
  heliograph durability checkpoint '#' --db sqlite:///tmp/objects.db --bus redis://127.0.0.1:6379/0
  heliograph durability checkpoint '#' --every 300 --config-file /etc/heliograph/heliograph.conf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, verb in options.add_verbs(parser, _VERBS, description=DESCRIPTION, examples=EXAMPLES):
        run, has_topics = _VERBS[name]
        if has_topics:
            verb.add_argument("topics", nargs="+", metavar="FILTER", help="topics, as in 'tenant-7/#'")
        verb.add_argument(
            "--service", metavar="ADDRESS", action="append", default=[],
            help="a service to ask, on a bind-based driver; may be repeated (default: [durability] fellows)",
        )  # fmt: skip
        verb.add_argument(
            "--timeout",
            metavar="TIME",
            type=options.seconds,
            default=10.0,
            help="wait at most this long (default: 10s)",
        )
        if name == "checkpoint":
            add_db(verb)
            verb.add_argument(
                "--every", metavar="TIME", type=options.seconds, default=0.0,
                help="make a checkpoint again and again, with this pause; log failures and go on (default: one)",
            )  # fmt: skip
        if name == "delete":
            options.add_confirmation(verb)
        options.add_session(verb)
        options.add_json(verb, "JSON, one object per line")
        verb.set_defaults(run=_with_client(run))


def _with_client(run: Any) -> Any:
    def call(args: argparse.Namespace, output: Output) -> int:
        from durability_service.client import DurabilityClient
        from pubsub_api.core.topics import check_filter

        for topic_filter in getattr(args, "topics", ()):
            check_filter(topic_filter)

        with (
            options.open_session(args) as session,
            DurabilityClient(session, addresses=args.service or None) as client,
        ):
            args.session = session
            code: int = run(client, args, output)
            return code

    return call


def _status(client: DurabilityClient, args: argparse.Namespace, output: Output) -> int:
    services = client.status(timeout_s=args.timeout)
    for service in services:
        if output.is_json:
            output.record(_plain(service))
    if not services:
        _no_service(args)
    if not output.is_json:
        output.table(
            "Durability services",
            ["service", "role", "name-space", "state", "master", "epoch", "samples", "lag", "trouble"],
            [row for service in services for row in _rows(service)],
        )
    for line in find_clashes(services):
        note(line)
    is_complete = all(space.is_complete for service in services for space in service.name_spaces)
    is_well = is_complete and not any(map(problems_of, services)) and not find_clashes(services)
    return exits.OK if is_well else exits.FAILED


def problems_of(service: ServiceStatus) -> list[str]:
    """What is wrong with a service, or between it and others."""
    peers = [one for one in service.peers if one.incompatibility or one.is_one_way]
    return [*service.trouble, *(f"{one.node}: {one.incompatibility or 'does not hear us'}" for one in peers)]


def find_clashes(services: Sequence[ServiceStatus]) -> list[str]:
    """Problems that only a comparison of all services shows: names used twice, and several masters of one role."""
    names = Counter(service.node for service in services)
    found = [f"{count} services are named {name}" for name, count in sorted(names.items()) if count > 1]
    masters: dict[tuple[str, str], set[str]] = {}
    for service in services:
        for space in service.name_spaces:
            if space.master and space.is_agreed:
                masters.setdefault((space.name, service.role), set()).add(space.master)
    for (name, role), leaders in sorted(masters.items()):
        if len(leaders) > 1:
            found.append(f"name-space {name} of role {role} has the masters {', '.join(sorted(leaders))}")
    return found


def _rows(service: ServiceStatus) -> Iterator[list[str]]:
    trouble = problems_of(service)
    for space in service.name_spaces:
        yield [
            service.node,
            service.role,
            space.name,
            "complete" if space.is_complete else space.phase.lower(),
            (space.master or "none") + ("" if space.is_agreed else " (not agreed)"),
            f"{space.epoch.counter} {space.epoch.master}".strip(),
            f"{space.samples:,}",
            f"{service.lag:,}",
            "; ".join([*space.conflicts, *space.warnings, *trouble]),
        ]


def _plain(service: ServiceStatus) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(service)
    return plain


def _no_service(args: argparse.Namespace) -> NoReturn:
    from durability_service.errors import NoService

    raise NoService(f"no durability service answered within {args.timeout:g} s{resolution_hint(args.service)}")


def _history(client: DurabilityClient, args: argparse.Namespace, output: Output) -> int:
    from durability_service.serving.sampling import event_of
    from pubsub_api.core.durability import HistoryOutcome

    outcome, samples = client.history(args.topics, timeout_s=args.timeout)
    if outcome is HistoryOutcome.NO_SERVICE:
        _no_service(args)
    for sample in samples:
        event = event_of(sample)
        output.result(
            event_record(event),
            f"{event.topic} {event.table}/{event.key} {event.action} {compact(event.value)}",
        )
    return exits.OK if outcome is HistoryOutcome.COMPLETE else exits.FAILED


def _delete(client: DurabilityClient, args: argparse.Namespace, output: Output) -> int:
    topics = ", ".join(args.topics)
    if not args.yes:
        _, samples = client.history(args.topics, timeout_s=args.timeout)
        what = f"delete the history of {topics}, {len(samples):,} samples now, in all services"
        if not is_confirmed(args, output, what):
            return exits.OK if args.dry_run else exits.FAILED
    client.delete_historical_data(args.topics, timeout_s=args.timeout)
    output.result({"deleted": topics}, f"deleted: {topics}")
    return exits.OK


def _snapshot(client: DurabilityClient, args: argparse.Namespace, output: Output) -> int:
    path = client.snapshot(args.topics, timeout_s=args.timeout)
    output.result({"snapshot": path}, f"snapshot: {path}")
    return exits.OK


def _checkpoint(client: DurabilityClient, args: argparse.Namespace, output: Output) -> int:
    from nb_api.loading import open_db

    with contextlib.closing(open_db(args.db, args.session.conf, with_outbox=False, must_exist=True)) as db:
        publisher = args.session.publisher()
        if not args.every:
            _make_checkpoint(publisher, client, db, args, output)
            return exits.OK
        try:
            while True:
                try:
                    _make_checkpoint(publisher, client, db, args, output)
                except HeliographError as error:
                    if error.fault != "environment":
                        raise
                    LOG.warning("This checkpoint failed, the next one follows in %g s: %s", args.every, error)
                output.flush()
                time.sleep(args.every)
        except KeyboardInterrupt:
            return exits.OK


def _make_checkpoint(
    publisher: Publisher, client: DurabilityClient, db: DbApi, args: argparse.Namespace, output: Output
) -> None:
    from durability_service.storage.checkpoint import write_checkpoint

    report = write_checkpoint(
        publisher, client, db, topics=args.topics, services=args.service or None, timeout_s=args.timeout
    )
    output.result(
        report._asdict(),
        f"checkpoint of {report.objects:,} objects at revision {report.revision}: "
        f"{report.published:,} published, {report.deleted:,} deleted",
    )


_VERBS = {
    "status": (_status, False),
    "history": (_history, True),
    "delete": (_delete, True),
    "snapshot": (_snapshot, True),
    "checkpoint": (_checkpoint, True),
}
