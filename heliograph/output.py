"""What commands print: tables and lines for people, JSON for scripts.

Results go to standard output, everything else (progress, notes, errors) to standard error.  Text that came from the
network is shown with its control characters escaped, so that no event can control a terminal.  The library for tables
and colours is imported when the first table is made.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from durable_log import LogApi
    from pubsub_api import Event

PIPE_COLUMNS = 200
"""Width of a table when standard output is no terminal: wide, so that few rows are wrapped."""

_WIDTH_MAX = 1_000_000

DEPTH_MAX = 100
EXACT_INTEGER_MAX = 1 << 53
"""Larger integers are written as strings: JSON readers that store all numbers as floats would lose digits."""

STATUS_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


class Payload:
    """A user's value inside a record.  All its integers stay numbers, so that it can be stored again as it was."""

    def __init__(self, value: object) -> None:
        self.value = value


class Output:
    """The standard output of one command: text, or JSON with ``--json``."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    @functools.cached_property
    def console(self) -> Console:
        """Made at its first use: many commands print lines only."""
        return stdout_console()

    def record(self, value: object) -> None:
        """One JSON object, from a mapping or a dataclass, on a line of its own."""
        sys.stdout.write(dumps(value) + "\n")

    def result(self, record: object, line: str) -> None:
        """One result: as a JSON object for scripts, as a line for people."""
        if self.is_json:
            self.record(record)
        else:
            self.line(line)

    def counters(self, counters: Mapping[str, object]) -> None:
        """The counters of running work on one line, flushed at once."""
        self.result(counters, ", ".join(f"{name} {compact(value)}" for name, value in counters.items()))
        self.flush()

    def statistics(self, statistics: object) -> None:
        """The fields of a dataclass at the end of a command: as ``{"statistics": ...}``, or as a table."""
        if self.is_json:
            self.record({"statistics": statistics})
        else:
            fields = list(flat_fields(statistics))
            rows = [(name, compact(value)) for name, value in fields if value not in (0, None, "", {}, [])]
            self.table("statistics", ("counter", "value"), rows)
            hidden = len(fields) - len(rows)
            if hidden:
                self.line(f"{counted(hidden, 'counter')} more: 0 or empty")

    @property
    def can_redraw(self) -> bool:
        """Whether standard output is a terminal on which a view can replace the one before."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def line(self, text: str, style: str = "") -> None:
        """One line for people.  ``text`` may hold control characters: they are escaped."""
        if style and self.console.is_terminal:
            from rich.text import Text

            self.console.print(Text(printable(text), style=style), soft_wrap=True)
        else:
            sys.stdout.write(printable(text) + "\n")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people.  Where it is wider than the terminal, each row becomes a paragraph."""
        from rich.measure import Measurement

        rows = list(rows)
        table = make_table(title, columns, rows)
        unbounded = self.console.options.update(width=_WIDTH_MAX)
        if Measurement.get(self.console, unbounded, table).maximum <= self.console.width:
            self.console.print(table)
            return
        if title:
            self.line(title)
        name_width = max(map(len, columns))
        for row in rows:
            self.line("")
            for column, cell in zip(columns, row, strict=True):
                if str(cell):
                    self.line(f"{column:<{name_width}}  {cell}", style=STATUS_STYLES.get(str(cell), ""))

    def flush(self) -> None:
        sys.stdout.flush()


def stdout_console() -> Console:
    from heliograph.terminal.console import PipeConsole

    console = PipeConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A rich table of plain texts; a cell that is a status gets its colour."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell)), style=STATUS_STYLES.get(str(cell), "")) for cell in row))
    return table


def note(text: str) -> None:
    """Print a remark for people on standard error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def note_empty(log: LogApi, command: str) -> None:
    """Print a note when the log is empty: perhaps its URL is mistyped."""
    if not any(state.end for state in log.state()):
        note(f"{command}: nothing was ever appended to this log")


def flat_fields(statistics: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(path, value) of every field of a dataclass and of the dataclasses inside it."""
    for name, value in vars(statistics).items():
        if dataclasses.is_dataclass(value):
            yield from flat_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def printable(text: str) -> str:
    """The text with unprintable characters, except line ends, replaced by their Python escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """``1 event``, ``2 events``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def dumps(value: object) -> str:
    """JSON on one line, in ASCII.  Accepts every value that msgpack can carry; see `jsonable`."""
    return json.dumps(jsonable(value), allow_nan=False, separators=(", ", ": "))


def compact(value: object) -> str:
    """A value inside a line for people."""
    return printable(
        json.dumps(jsonable(value, is_payload=True), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    )


def jsonable(value: Any, depth: int = 0, *, is_payload: bool = False) -> Any:
    """The nearest JSON value.  Bytes become ``{"bytes": hex}``; infinite numbers and unknown types become strings.

    Integers above `EXACT_INTEGER_MAX` become strings too, except in a `Payload`.  Values below `DEPTH_MAX` levels are
    replaced by a sentence.
    """
    if isinstance(value, int) and not is_payload and abs(value) > EXACT_INTEGER_MAX:
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Payload):
        return jsonable(value.value, depth, is_payload=True)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(value).hex()}
    if depth >= DEPTH_MAX:
        return f"(nested deeper than {DEPTH_MAX} levels)"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item, depth + 1, is_payload=is_payload) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, depth + 1, is_payload=is_payload) for item in value]
    return str(value)


def event_record(event: Event) -> dict[str, Any]:
    """An event for scripts.  The timestamp is a string of nanoseconds.  ``headers`` is left out when empty."""
    record = {
        "topic": event.topic,
        "table": event.table,
        "key": event.key,
        "action": event.action,
        "value": Payload(event.value),
        "version": event.version,
        "timestamp": str(event.timestamp),
    }
    return {**record, "headers": Payload(dict(event.headers))} if event.headers else record


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    return key.hex() if isinstance(key, bytes) else str(key)


def clock_text(timestamp_ns: int) -> str:
    """The time of a timestamp in UTC; the number itself when the calendar does not reach so far."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ns // 1_000_000_000, tz=datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ns % 1_000_000_000 // 1000:06d}Z"
