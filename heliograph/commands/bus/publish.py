"""``heliograph publish``: send events from the command line, from standard input, or as a load."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from heliograph import exits, options
from heliograph.output import Output, compact, counted, note
from heliograph.terminal.progress import Progress
from pubsub_api import Event
from pubsub_api.core.events import ACTIONS, encode_event
from pubsub_api.core.headers import NO_HEADERS
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import InvalidEvent, UsageError

if TYPE_CHECKING:
    from pubsub_api import Publisher

DESCRIPTION = """\
Publish events: one from the arguments, the same one several times (--repeat, --rate), or one per line of standard input
(--stdin), each a JSON object with topic, table, key, and optionally action, value, version, headers.

`heliograph publish TOPIC VALUE` is enough: the event then has the table `message`, and the topic as its key.  A VALUE
is JSON; a VALUE that does not look like JSON is taken as a text.

With zmq and other bind-based drivers subscribers connect to this process, and an event that is sent before they are
connected is lost.  So the command waits 2.5 seconds before the first event (--wait), in which running subscribers
connect, and stays 1 second after the last one (--linger), in which they can ask for events that they missed.  With a
broker both are 0.  A publisher does not know its subscribers, so the command cannot tell whether an event was received.
"""
EXAMPLES = """\
  heliograph publish tenant-7/port '{"up": true}'
  heliograph publish greetings hello
  heliograph publish --topic tenant-7/port --table port --key p1 --value '{"up": true}' --version 42
  heliograph publish greetings hello --header caller=me
  heliograph publish --topic tenant-7/port --table port --key 'p{n}' --repeat 100000 --rate 5000
  echo '{"topic": "t", "table": "port", "key": "p1", "action": "delete"}' | heliograph publish --stdin
  heliograph publish --bus redis://127.0.0.1:6379/0 --topic t --table port --key p1
"""

BIND_BASED_WAIT_S = 2.5
"""Longer than the longest default pause of a driver between two attempts to connect."""
BIND_BASED_LINGER_S = 1.0
LINE_CHARACTERS_MAX = 64 * 1024 * 1024
_FIELDS = frozenset({"topic", "table", "key", "action", "value", "version", "timestamp", "headers"})
_PROGRESS_STEP = 256
_SHORT_TABLE = "message"
_JSON_BEGINNINGS = tuple('{["-0123456789')
_JSON_WORDS = frozenset({"true", "false", "null", "NaN", "Infinity"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    event = parser.add_argument_group("the event (with --stdin: defaults for the lines)")
    parser.add_argument("short_topic", metavar="TOPIC", nargs="?", help="the same as --topic")
    parser.add_argument("short_value", metavar="VALUE", nargs="?", help="the same as --value, or a text")
    event.add_argument("--topic", help="levels separated by /, as in tenant-7/port")
    event.add_argument("--table", help="kind of the object that changed")
    event.add_argument("--key", help="which object; with --repeat, {n} in it is replaced by 1, 2, 3, ...")
    event.add_argument("--action", choices=sorted(ACTIONS), default="set", help="what happened (default: set)")
    event.add_argument("--value", metavar="JSON", help="the object's new value (default: null)")
    event.add_argument(
        "--version", metavar="N", type=options.natural_int, default=0,
        help="the database's revision; with --repeat, that of the first event (default: 0, none)",
    )  # fmt: skip
    event.add_argument(
        "--header", metavar="NAME=TEXT", type=_header, action="append", default=[],
        help="a header that travels with the event; may be given several times",
    )  # fmt: skip
    many = parser.add_argument_group("how many")
    many.add_argument("--stdin", action="store_true", help="read events from standard input, one JSON object per line")
    many.add_argument("--repeat", metavar="N", type=options.positive_int, default=1, help="send the event N times")
    many.add_argument("--rate", metavar="R", type=options.rate, help="at most R events per second")
    many.add_argument("--wait", metavar="TIME", type=options.seconds, help="how long to wait before the first event")
    many.add_argument("--linger", metavar="TIME", type=options.seconds, help="how long to stay after the last event")
    many.add_argument(
        "--flush-timeout", metavar="TIME", type=options.seconds, default=10.0,
        help="how long to wait until the transport has taken all events (default: 10s)",
    )  # fmt: skip
    many.add_argument("--name", default="", help="the publisher's stable name (default: host and program)")
    options.add_session(parser)
    options.add_json(parser, "the result as one JSON object")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"a header is NAME=TEXT, not {text!r}")
    return name, value


def run(args: argparse.Namespace, output: Output) -> int:
    _take_short_form(args)
    events = _events(args)
    with options.open_session(args) as session:
        is_bind_based = session.capabilities.bind_based
        publisher = session.publisher(name=args.name)
        if args.bus and args.bus.startswith("memory:"):
            note("a bus in memory ends at this process: no other process receives these events")
        time.sleep(_pause_s(args.wait, BIND_BASED_WAIT_S, is_bind_based))
        start = time.monotonic()
        try:
            _send(publisher, events, args)
            publisher.flush(timeout_s=args.flush_timeout)
            elapsed_s = time.monotonic() - start
            time.sleep(_pause_s(args.linger, BIND_BASED_LINGER_S, is_bind_based))
        except BaseException:
            publisher.close()
            sent = publisher.statistics()
            note(_before_failure(sent.events, sent.send_failures))
            raise
        sent = publisher.statistics()
    if sent.send_failures:
        note(f"the transport refused {counted(sent.send_failures, 'frame')} meanwhile: subscribers "
             "could ask for these events only until this command ended")  # fmt: skip
    rate = f", {sent.events / elapsed_s:,.0f}/s" if sent.events > 1 else ""
    what = counted(sent.events, "event")
    output.result(
        {"sent": sent.events, "seconds": round(elapsed_s, 6), "publisher": sent},
        f"sent {what} in {elapsed_s:.3f} s{rate}, as {sent.name} at {sent.address}",
    )
    return exits.OK


def _before_failure(events: int, refusals: int) -> str:
    """A line about the events that were accepted before an error."""
    if refusals:
        return (f"{counted(events, 'event')} accepted here, and perhaps none reached a subscriber: the transport "
                f"refused {counted(refusals, 'frame')}")  # fmt: skip
    return f"{counted(events, 'event')} published before this:"


def _take_short_form(args: argparse.Namespace) -> None:
    """Set ``--topic``, ``--table``, ``--key`` and ``--value`` from ``TOPIC VALUE``.  Raises UsageError when one of
    them is given twice."""
    for name, short in (("topic", args.short_topic), ("value", args.short_value)):
        if short is not None and getattr(args, name) is not None:
            raise UsageError(f"the {name} is given twice, as {short!r} and with --{name}")
    if args.short_topic is None:
        return
    args.topic = args.short_topic
    args.table = _SHORT_TABLE if args.table is None else args.table
    args.key = args.topic if args.key is None else args.key
    if args.short_value is not None:
        text = args.short_value.strip()
        is_json = text.startswith(_JSON_BEGINNINGS) or text in _JSON_WORDS
        args.value = args.short_value if is_json else json.dumps(args.short_value)


def _pause_s(given_s: float | None, default_s: float, is_bind_based: bool) -> float:
    if given_s is not None:
        return given_s
    return default_s if is_bind_based else 0.0


def _send(publisher: Publisher, events: Iterable[Event], args: argparse.Namespace) -> None:
    """Send all events.  Raises UsageError with the number of an event that the publisher refuses."""
    with Progress("published", args.repeat) as progress:
        for number, event in enumerate(_paced(events, args.rate) if args.rate else events, 1):
            try:
                publisher.send_event(event)
            except UsageError as error:
                raise type(error)(f"event {number}: {error}") from error
            if number % _PROGRESS_STEP == 0 and not args.stdin:
                progress.update(number)


def _paced(events: Iterable[Event], rate: float) -> Iterator[Event]:
    """The events, each not before its time.  An event that is late does not delay the events after it."""
    start = time.monotonic()
    for number, event in enumerate(events):
        early_s = start + number / rate - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        yield event


def _events(args: argparse.Namespace) -> Iterator[Event]:
    """The events to send.  Raises UsageError at once when the arguments do not make an event."""
    if args.stdin:
        if args.repeat != 1:
            raise UsageError("--repeat repeats the event of the arguments; it does not go with --stdin")
        return _from_lines(args)
    missing = [f"--{name}" for name in ("topic", "table", "key") if getattr(args, name) is None]
    if missing:
        raise UsageError(f"an event needs {', '.join(missing)} (or --stdin)")
    value = _json_value("null" if args.value is None else args.value, "--value")
    # What the publisher would refuse is refused before an address is bound or a server is asked.
    first = next(_from_arguments(args, value))
    check_topic(first.topic)
    encode_event(first, 1)
    return _from_arguments(args, value)


def _from_arguments(args: argparse.Namespace, value: object) -> Iterator[Event]:
    headers = dict(args.header) or NO_HEADERS
    for number in range(args.repeat):
        yield Event(
            topic=args.topic,
            table=args.table,
            key=args.key if args.repeat == 1 else args.key.replace("{n}", str(number + 1)),
            action=args.action,
            value=value,
            version=args.version + number if args.version else 0,
            headers=headers,
        )


def _from_lines(args: argparse.Namespace) -> Iterator[Event]:
    defaults = {name: getattr(args, name) for name in ("topic", "table", "key", "action", "version")}
    defaults["headers"] = dict(args.header)
    defaults["value"] = None if args.value is None else _json_value(args.value, "--value")
    for number in itertools.count(1):
        where = f"line {number} of the input"
        line = sys.stdin.readline(LINE_CHARACTERS_MAX)
        if not line:
            return
        if len(line) == LINE_CHARACTERS_MAX and not line.endswith("\n"):
            raise InvalidEvent(f"{where}: longer than {LINE_CHARACTERS_MAX:,} characters, which no event may be")
        if line.strip():
            yield _from_line(line, where, defaults)


def _from_line(line: str, where: str, defaults: dict[str, Any]) -> Event:
    """The event of a line.  Raises InvalidEvent unless it is a JSON object with the fields of an event.  The publisher
    checks their types."""
    fields = _json_value(line, where)
    if not isinstance(fields, dict):
        raise InvalidEvent(f"{where}: an event is a JSON object, not {type(fields).__name__}")
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise InvalidEvent(f"{where}: {unknown[0]!r} is no field of an event; those are {', '.join(sorted(_FIELDS))}")
    merged = {**defaults, **fields}
    for name in ("version", "timestamp"):  # `--json` writes large numbers as texts
        if isinstance(merged.get(name), str) and merged[name].isdecimal():
            merged[name] = int(merged[name])
    for name in ("topic", "table", "key"):
        if not isinstance(merged[name], str):
            problem = "is missing" if merged[name] is None else f"must be a string, not {compact(merged[name])}"
            raise InvalidEvent(f"{where}: the event's {name} {problem}")
    return Event(**merged)


def _json_value(text: str, where: str) -> Any:
    try:
        return options.json_value(text)
    except ValueError as error:
        raise InvalidEvent(f"{where}: this is not JSON: {error}") from error
