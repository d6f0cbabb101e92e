"""``heliograph decode``: show the content of captured frames."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import sys
from collections.abc import Sequence

from heliograph import exits, options
from heliograph.output import Output, Payload, clock_text, compact
from heliograph.wire_reader import EVENT_FIELDS, DecodedFrame, read_frames
from pubsub_api.errors import UsageError

INPUT_BYTES_MAX = 256 * 1024 * 1024

DESCRIPTION = """\
Show captured frames: header fields by name, then the events or the body.

The frames are read with the plain msgpack package, without code of the bus, so this also proves that any msgpack
library can read them.  Several frames may follow each other.  At bytes that are no frame the command fails and prints
their offset.  A signature is shown but not checked.
"""
EXAMPLES = """\
  heliograph decode capture.bin
  heliograph decode --hex < frame.txt
  heliograph decode --json capture.bin | jq .events
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="what to read; - is standard input")
    parser.add_argument("--hex", action="store_true", help="the input is hexadecimal text; spaces and colons are fine")
    options.add_json(parser, "one JSON object per frame")


def run(args: argparse.Namespace, output: Output) -> int:
    """Raises FrameError with the byte offset, after showing the frames before it."""
    data = _read(args.file)
    for frame in read_frames(_from_hex(data) if args.hex else data):
        if args.json:
            output.record(_record(frame))
        else:
            _show(output, frame)
    return exits.OK


def _record(frame: DecodedFrame) -> dict[str, object]:
    """A frame for scripts: its fields by name."""
    record = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    if frame.events is not None:
        record["events"] = [
            {name: Payload(value) if name == "value" else value for name, value in event.items()}
            for event in frame.events
        ]
    return record


def _read(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        else:
            with pathlib.Path(name).open("rb") as file:
                data = file.read(INPUT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    if len(data) > INPUT_BYTES_MAX:
        raise UsageError(f"{name} is larger than {INPUT_BYTES_MAX} bytes; cut it at a frame's end")
    return data


def _from_hex(data: bytes) -> bytes:
    # Replaced by blanks, not removed, so that the position in the error is the position in the input.
    text = re.sub(rb"0[xX]|[\s:,]", lambda found: b" " * len(found.group()), data)
    bad = re.search(rb"[^0-9a-fA-F ]", text)
    if bad:
        raise UsageError(f"the input is not hexadecimal: byte {bad.group()!r} at position {bad.start()}")
    digits = text.replace(b" ", b"")
    if len(digits) % 2:
        raise UsageError(f"the input is not hexadecimal: it has {len(digits)} digits, an odd number")
    return bytes.fromhex(digits.decode())


def _show(output: Output, frame: DecodedFrame, title: str = "") -> None:
    header = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    del header["events"], header["body"]
    header["flags"] = " ".join(frame.flags) or "none"
    header["timestamp"] = f"{frame.timestamp} ({clock_text(frame.timestamp)})"
    header["signature"] = frame.signature or "none"
    output.table(title or f"frame at byte {frame.offset}", ("field", "value"), header.items())
    if frame.events is not None:
        has_headers = any("headers" in event for event in frame.events)
        names = (*EVENT_FIELDS, "headers") if has_headers else EVENT_FIELDS
        rows = [[frame.first + number, *_cells(event, names)] for number, event in enumerate(frame.events)]
        output.table(f"events of {frame.topic}", ("number", *names), rows)
    else:
        _show_body(output, frame)


def _show_body(output: Output, frame: DecodedFrame) -> None:
    body = dict(frame.body) if isinstance(frame.body, dict) else {"": frame.body}
    stored = body.pop("frames", ())
    output.table(f"body of {frame.kind}", ("field", "value"), [(key, compact(value)) for key, value in body.items()])
    for number, inner in enumerate(stored, 1):
        if isinstance(inner, DecodedFrame):
            _show(output, inner, f"frame {number} of {len(stored)} in that {frame.kind}")


def _cells(event: dict[str, object], names: Sequence[str]) -> list[str]:
    shown = [event.get(name, "") for name in names]
    return [cell if isinstance(cell, str) else compact(cell) for cell in shown]
