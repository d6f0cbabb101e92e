"""``heliograph subscribe``: print events as they arrive, and every loss in its place between them."""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.opening.hosts import resolution_hint
from heliograph.output import Output, clock_text, compact, event_record, note
from pubsub_api import Durability, Event, History, HistoryOutcome, Resync
from pubsub_api.core.topics import check_filter
from pubsub_api.errors import UsageError, WaitTimeout

if TYPE_CHECKING:
    from pubsub_api import Session, Subscriber

DESCRIPTION = """\
Print the events of topics, in order, until --count or --timeout is reached or Ctrl-C is pressed.

A FILTER is a topic, with + for any one level and # at the end for the rest: tenant-7/#, +/port.  Quote it.

A line that begins with `resync` stands where events are missing, or where some may be missing.  A program reads the
database again there.  The first one, `initial`, says that the subscription is in effect.

With --count, exit code 1 means that fewer events came before the time-out; 3 means that no publisher or server was
reached at all.
"""
EXAMPLES = """\
  heliograph subscribe 'tenant-7/#'
  heliograph subscribe '#' --history all --count 10 --timeout 5 --json
  heliograph subscribe 'orders/#' --durability persistent --bus redis://127.0.0.1:6379/0
  heliograph subscribe --config-file /etc/heliograph.conf '+/port' --statistics
"""

_FIRST_NOTE_S = 3.0
"""After this long the command notes that no publisher or server was reached yet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filters", nargs="+", metavar="FILTER", help="topics to listen to")
    parser.add_argument("--count", metavar="N", type=options.positive_int, help="end after N events")
    options.add_timeout(parser)
    past = parser.add_mutually_exclusive_group()
    past.add_argument(
        "--history", metavar="N|all", type=_history,
        help="first the newest N events of each stream that caches still hold, or all of them",
    )  # fmt: skip
    past.add_argument(
        "--durability", metavar="KIND", type=_durability,
        help="first the history of the topics, kept at least as transient_local, transient or persistent",
    )  # fmt: skip
    parser.add_argument("--statistics", action="store_true", help="print the subscriber's counters at the end")
    options.add_session(parser)
    options.add_json(parser, 'one JSON object per event; a resync is {"resync": ...}, counters {"statistics": ...}')


_newest = options.number(int, lambda value: value >= 1, "all, or a whole number of 1 or more")


def _history(text: str) -> History:
    if text == "all":
        return History()
    return History(newest=_newest(text))


def _durability(text: str) -> Durability:
    try:
        return Durability[text.upper()]
    except KeyError:
        names = ", ".join(kind.name.lower() for kind in Durability)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {names}") from None


class Printer:
    """Prints events in the subscriber's thread.  ``done`` is set after ``count`` events, or at a failure.

    Printing in that thread makes a slow reader of the output slow down the subscriber, whose queue is bounded.
    """

    def __init__(self, output: Output, count: int | None) -> None:
        self.printed = 0
        self.done = threading.Event()
        self.failure: OSError | None = None
        self._output = output
        self._count = count

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if not self.done.is_set():
                self._print(event_record(event) if self._output.is_json else _event_line(event))
                self.printed += 1
                if self.printed == self._count:
                    self.done.set()
        self._guarded_flush()

    def on_resync(self, resync: Resync) -> None:
        if not self.done.is_set():
            self._print({"resync": _resync_record(resync)} if self._output.is_json else _resync_line(resync))
            self._guarded_flush()

    def _print(self, what: dict[str, Any] | str) -> None:
        try:
            if isinstance(what, dict):
                self._output.record(what)
            else:
                self._output.line(what, style="bold yellow" if what.startswith("resync") else "")
        except OSError as error:
            self._fail(error)

    def _guarded_flush(self) -> None:
        try:
            self._output.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Keep the error, such as a broken pipe or a full disk, for the main thread, which raises it."""
        self.failure = self.failure or error
        self.done.set()


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises UsageError; WaitTimeout when the subscription was not in effect before the time-out."""
    from pubsub_api.subscribing.scheme import scheme_of

    printer = Printer(output, args.count)
    if scheme_of(args.filters) is not None:  # it would take work of the group without doing it
        raise UsageError(
            f"{args.filters[0]}: this command only prints events; a member of a group must be a program that handles "
            "them"
        )
    for topic_filter in args.filters:
        check_filter(topic_filter)
    with options.open_session(args) as session:
        if args.history is not None and not session.capabilities.queries:
            raise UsageError("this driver has no queries, so caches cannot be asked for --history")
        subscriber = session.subscriber(
            args.filters, on_events=printer.on_events, on_resync=printer.on_resync,
            past=args.durability if args.history is None else args.history,
        )  # fmt: skip
        try:
            is_reached = _wait(printer, subscriber, args.timeout, addresses := _addresses(session))
        finally:
            for mismatch in subscriber.durability_mismatches():
                note(f"heliograph subscribe: {mismatch}")
            subscriber.close()
            if args.statistics:
                output.statistics(subscriber.statistics())
    if printer.failure is not None:
        raise printer.failure
    if not is_reached:
        raise WaitTimeout(
            f"no publisher or server was reached within {args.timeout:g} s{resolution_hint(addresses)}; "
            "`heliograph doctor` may find the reason"
        )
    if args.count is not None and printer.printed < args.count:
        note(f"heliograph subscribe: {printer.printed} of {args.count} events came within {args.timeout} s")
        return exits.FAILED
    return exits.OK


def _addresses(session: Session) -> list[str]:
    from pubsub_api.loading import build_driver

    return build_driver(session.conf).listen_addresses()


def _wait(printer: Printer, subscriber: Subscriber, timeout_s: float | None, addresses: list[str]) -> bool:
    """Wait until the printer is done or the time is over.  Returns False when the subscription was never in effect."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    is_done = printer.done.wait(min(_FIRST_NOTE_S, deadline - time.monotonic()))
    if not is_done and not _is_ready(subscriber) and time.monotonic() < deadline:
        note(f"no publisher or server was reached yet{resolution_hint(addresses)}; still trying")
    if not is_done and subscriber.wait_for_historical_data(timeout_s=0.0) is not HistoryOutcome.COMPLETE:
        note("no complete history yet; `heliograph durability status` lists the services that keep it")
    while not is_done and (left_s := deadline - time.monotonic()) > 0:
        is_done = printer.done.wait(min(left_s, threading.TIMEOUT_MAX))
    return is_done or _is_ready(subscriber)


def _is_ready(subscriber: Subscriber) -> bool:
    try:
        subscriber.wait_ready(timeout_s=0.0)
    except WaitTimeout:
        return False
    return True


def _event_line(event: Event) -> str:
    when = clock_text(event.timestamp) if event.timestamp else "-"
    headers = f" headers {compact(dict(event.headers))}" if event.headers else ""
    what = f"{event.action} {event.table}/{event.key} v{event.version} {compact(event.value)}"
    return f"{when} {event.topic} {what}{headers}"


def _resync_record(resync: Resync) -> dict[str, Any]:
    return {
        "reason": resync.reason.value,
        "reasons": sorted(reason.value for reason in resync.reasons),
        "topics": list(resync.topics),
        "generation": resync.generation,
        "lost": list(resync.lost),
    }


def _resync_line(resync: Resync) -> str:
    lost = f"; lost: {', '.join(str(range_) for range_ in resync.lost)}" if resync.lost else ""
    return f"resync {resync.generation} ({resync.reason.value}): read again {', '.join(resync.topics)}{lost}"
