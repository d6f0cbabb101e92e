"""``heliograph decode`` and the independent reader behind it."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import hypothesis.strategies as st
import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given

from heliograph import exits, main, wire_reader
from pubsub_api.core import events, frame, messages
from pubsub_api.core.events import Event
from pubsub_api.core.frame import Flag, Kind
from pubsub_api.errors import FrameError, MalformedFrame, NotAFrame, UndecodableBody, UnsupportedVersion

GUID = bytes(range(16))
STAMP = 1_700_000_000_000_000_000


def data_frame(values: list[Any] | None = None, **header: Any) -> bytes:
    encoded = [
        events.encode_event(Event(table="port", key=f"p{number}", action="set", value=value, version=number + 1), STAMP)
        for number, value in enumerate([{"up": True}] if values is None else values)
    ]
    fields = {"first": 1, "after": 0, "count": len(encoded), "timestamp": STAMP, **header}
    return frame.pack(Kind.DATA, GUID, "tenant-7/port", events.pack_body(encoded), **fields)


def control_frame(kind: Kind, body: Any, **header: Any) -> bytes:
    return frame.pack(kind, GUID, "$control", body if isinstance(body, bytes) else messages.encode(body), **header)


EVERY_KIND = {
    Kind.DATA: data_frame([1, {"b": b"\x00"}]),
    Kind.HELLO: control_frame(Kind.HELLO, messages.Hello(name="h", predecessor=GUID, heads={"a": 3}), flags=Flag.START),
    Kind.BYE: control_frame(Kind.BYE, messages.Bye(name="h", heads={"a": 9}), flags=Flag.LAST),
    Kind.QUERY: control_frame(Kind.QUERY, messages.Query(id=7, wants=[messages.Want(GUID, "a", 2, 5)])),
    Kind.REPLY: control_frame(
        Kind.REPLY, messages.Reply(id=7, responder="c", heads=[(GUID, "a", 5)], frames=[data_frame()])
    ),
    Kind.CONTROL: control_frame(Kind.CONTROL, msgpack.packb({"anything": [1]})),
}


def decode(data: bytes, tmp_path: pathlib.Path, *arguments: str) -> int:
    path = tmp_path / "capture"
    path.write_bytes(data)
    return main.main(["decode", str(path), *arguments])


def test_headers_are_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced = events.encode_event(Event(table="port", key="p1", action="set", headers={"caller": "me"}), STAMP)
    bad = msgpack.packb(["port", "p2", "set", None, 0, STAMP, "no JSON"])
    captured = frame.pack(Kind.DATA, GUID, "t", events.pack_body([traced, bad]), first=1, count=2, timestamp=STAMP)
    assert decode(captured, tmp_path, "--json") == exits.OK
    assert [one["headers"] for one in json.loads(capsys.readouterr().out)["events"]] == [{"caller": "me"}, "no JSON"]
    assert decode(captured, tmp_path) == exits.OK
    assert "caller" in capsys.readouterr().out


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_every_kind_of_frame(
    kind: Kind, arguments: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(EVERY_KIND[kind], tmp_path, *arguments) == exits.OK
    out = capsys.readouterr().out
    assert kind.name in out
    assert GUID.hex() in out
    if arguments:
        assert json.loads(out)["kind"] == kind.name


def test_concatenated_frames_come_out_one_by_one(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(b"".join(EVERY_KIND.values()), tmp_path, "--json") == exits.OK
    decoded = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [it["kind"] for it in decoded] == [kind.name for kind in Kind]
    sizes = [len(it) for it in EVERY_KIND.values()]
    assert [it["offset"] for it in decoded] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert decoded[0]["events"][1] == {
        "table": "port", "key": "p1", "action": "set", "value": {"b": {"bytes": "00"}}, "version": 2,
        "timestamp": str(STAMP),
    }  # fmt: skip
    assert decoded[1]["flags"] == ["START"]
    assert decoded[1]["body"] == {"name": "h", "predecessor": {"bytes": GUID.hex()}, "heads": {"a": 3}}
    [stored] = decoded[4]["body"]["frames"]
    assert stored["events"][0]["value"] == {"up": True}


def test_the_reader_agrees_with_the_writer() -> None:
    """The reader is independent; this is what both must say about one frame."""
    written = data_frame([1, 2, 3], first=10, after=7, flags=0)
    header = frame.unpack(written, bytes_max=len(written))
    [read] = wire_reader.read_frames(written)
    for field in ("first", "after", "count", "timestamp", "topic"):
        assert getattr(read, field) == getattr(header, field)
    assert read.guid == header.guid.hex()
    assert [it["value"] for it in read.events or []] == [it.value for it in events.decode_events(written, header)]


def test_a_signature_is_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed = data_frame(key=b"secret")
    assert decode(signed, tmp_path, "--json") == exits.OK
    decoded = json.loads(capsys.readouterr().out)
    assert decoded["signature"] == signed[-32:].hex()
    assert decoded["flags"] == ["SIGNED"]


@pytest.mark.parametrize("form", [bytes.hex, lambda data: data.hex(" ").upper(), lambda data: data.hex(":") + "\n"])
def test_hexadecimal_input(form: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(form(it) for it in EVERY_KIND.values())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main.main(["decode", "--hex", "--json"]) == exits.OK
    assert len(capsys.readouterr().out.splitlines()) == len(EVERY_KIND)


@pytest.mark.parametrize(("text", "why"), [(b"9c zz", "b'z' at position 3"), (b"9ca", "odd number")])
def test_bad_hexadecimal(text: bytes, why: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(text, tmp_path, "--hex") == exits.USAGE
    assert why in capsys.readouterr().err


def test_what_precedes_garbage_is_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = data_frame()
    assert decode(good + b"garbage", tmp_path, "--json") == exits.FAILED
    captured = capsys.readouterr()
    assert json.loads(captured.out)["kind"] == "DATA"
    assert f"at byte offset {len(good)}: byte 67 does not start a frame" in captured.err


def _changed(position: int, *replacement: int) -> bytes:
    good = data_frame()
    return good[:position] + bytes(replacement) + good[position + len(replacement) :]


@pytest.mark.parametrize(
    ("data", "error", "offset"),
    [
        (b"", NotAFrame, 0),
        (b"\x00", NotAFrame, 0),
        (b"\xc1", NotAFrame, 0),
        (b"\x9b" + b"\x00" * 11, NotAFrame, 0),
        (b"\xdd", MalformedFrame, 0),
        (b"\xdd\xff\xff\xff\xff", NotAFrame, 0),
        (_changed(2, 0x58, 0x58), NotAFrame, 1),
        (_changed(2, 0xFF), MalformedFrame, 1),
        (_changed(4, 2), UnsupportedVersion, 4),
        (_changed(4, 0xC3), MalformedFrame, 4),
        (_changed(5, 99), MalformedFrame, 5),
        (_changed(6, 0xE0), MalformedFrame, 6),
        (_changed(7, 0xC4, 0x0F), MalformedFrame, 7),
        (data_frame()[:40], MalformedFrame, 34),
        (data_frame()[:-1], MalformedFrame, len(data_frame()) - 1),
        (data_frame([1, 2], count=1), UndecodableBody, 0),
        (control_frame(Kind.DATA, msgpack.packb({"a": 1}), first=1, count=1), UndecodableBody, 0),
        (control_frame(Kind.HELLO, b"\xc1"), UndecodableBody, 68),
        (control_frame(Kind.HELLO, b"\x91" * 3000 + b"\xc0"), UndecodableBody, 68),
        (control_frame(Kind.HELLO, b"\x81\x80\xc0"), UndecodableBody, 68),
        (control_frame(Kind.REPLY, messages.Reply(id=1, frames=[b"xx"])), NotAFrame, 0),
        (control_frame(Kind.REPLY, messages.Reply(id=1, frames=[b""])), UndecodableBody, 0),
        (control_frame(Kind.REPLY, messages.Reply(id=1, frames=[data_frame() * 2])), MalformedFrame, 0),
        (control_frame(Kind.REPLY, msgpack.packb({"frames": [1]})), UndecodableBody, 0),
    ],
)
def test_what_is_no_sound_frame_is_refused_with_its_offset(data: bytes, error: type[FrameError], offset: int) -> None:
    with pytest.raises(error, match=rf"^at byte offset {offset}: ") as caught:
        list(wire_reader.read_frames(data))
    assert type(caught.value) is error


def problem_of(data: bytes) -> str | None:
    """The message of the one typed error that reading raises; None when it raises none."""
    try:
        list(wire_reader.read_frames(data))
    except FrameError as error:
        return str(error)
    return None


@given(st.binary(max_size=200))
def test_random_bytes_give_frames_or_one_typed_error(data: bytes) -> None:
    problem = problem_of(data)
    assert problem is None or problem.startswith("at byte offset ")


@given(st.sampled_from(list(EVERY_KIND.values())), st.data())
def test_damaged_frames_give_frames_or_one_typed_error(good: bytes, draw: st.DataObject) -> None:
    position = draw.draw(st.integers(0, len(good) - 1))
    damaged = good[:position] + draw.draw(st.binary(max_size=4)) + good[position + draw.draw(st.integers(0, 4)) :]
    problem = problem_of(damaged)
    assert problem is None or problem.startswith("at byte offset ")


def test_an_empty_input_is_a_failure(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(b"", tmp_path) == exits.FAILED
    assert "the input is empty" in capsys.readouterr().err


def test_deeply_nested_values_can_be_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep: Any = None
    for _ in range(300):
        deep = [deep]
    assert decode(data_frame([deep]), tmp_path) == exits.OK
    assert "nested deeper" in capsys.readouterr().out
