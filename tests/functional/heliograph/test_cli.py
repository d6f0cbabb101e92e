"""The ``heliograph`` command in processes of its own, over real sockets."""

from __future__ import annotations

import html
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import pubsub_api
from heliograph import exits
from pubsub_api import Event
from pubsub_api.testing.ports import free_port
from tests.helpers.paths import ROOT
from tests.helpers.waiting import wait_until

PATIENCE_S = 90.0
"""How long a process may take on a machine that has other things to do."""


class Command:
    """``heliograph`` in a process.  Its lines are read as they come; leaving the ``with`` kills it."""

    def __init__(self, *arguments: str, has_stdin: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "heliograph", *arguments],
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.out: list[str] = []
        self.err: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read_out, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=lambda: self.err.extend(self.process.stderr or ()), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def say(self, record: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(record) + "\n")
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _read_out(self, pipe: Any) -> None:
        for line in pipe:
            self.out.append(line)
            self.lines.put(line)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def wait(self) -> int:
        """The exit code, when everything it printed has been read."""
        code = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code

    def next_line(self) -> str:
        return self.lines.get(timeout=PATIENCE_S)

    def next_record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.next_line())
        return record

    @property
    def errors(self) -> str:
        return "".join(self.err)


def run(*arguments: str) -> Command:
    """Run to the end."""
    with Command(*arguments) as command:
        command.wait()
    return command


@pytest.fixture
def url() -> Iterator[str]:
    """A bus over a socket file: no port that somebody else could take."""
    with tempfile.TemporaryDirectory(prefix="hg-") as directory:
        yield f"zmq://{directory}/bus"


@pytest.fixture
def publisher(url: str) -> Iterator[pubsub_api.Publisher]:
    with pubsub_api.open(url) as session:
        yield session.publisher()


def event(key: str) -> Event:
    return Event(topic="tenant-7/port", table="port", key=key, action="set", value={"up": True}, version=1)


def test_publish_reaches_subscribe(url: str) -> None:
    """Both as commands; the subscriber says when it is ready, and the publisher's input comes after that."""
    with (
        Command("publish", "--stdin", "--bus", url, "--wait", "0", "--json", has_stdin=True) as sent,
        Command("subscribe", "tenant-7/#", "--bus", url, "--count", "3", "--json") as heard,
    ):
        assert heard.next_record()["resync"]["reason"] == "initial"
        for number in (1, 2, 3):
            headers = {"caller": "me"} if number == 2 else None
            sent.say(
                {"topic": "tenant-7/port", "table": "port", "key": f"p{number}", "value": [number], "headers": headers}
            )
        sent.end_input()
        assert heard.wait() == exits.OK, heard.errors
        assert sent.wait() == exits.OK, sent.errors
    assert json.loads(sent.out[0])["sent"] == 3
    events = [record for line in heard.out if "key" in (record := json.loads(line))]
    assert [(it["key"], it["action"], it["value"]) for it in events] == [
        ("p1", "set", [1]), ("p2", "set", [2]), ("p3", "set", [3]),
    ]  # fmt: skip
    assert [it.get("headers") for it in events] == [None, {"caller": "me"}, None]


def test_repeated_events_are_numbered(url: str) -> None:
    """The subscriber may come at any time while the publisher lingers: it asks for what was before."""
    arguments = (
        "--topic", "t", "--table", "x", "--key", "k{n}", "--repeat", "3", "--version", "7", "--header", "a=b=c",
    )  # fmt: skip
    with Command("publish", "--bus", url, *arguments, "--wait", "0", "--linger", "86400") as sent:
        heard = run("subscribe", "t", "--bus", url, "--history", "all", "--count", "3", "--json")
        assert heard.process.returncode == exits.OK, heard.errors
        sent.process.send_signal(signal.SIGTERM)
        assert sent.wait() == exits.INTERRUPTED
    assert "3 events published before this" in sent.errors
    events = [record for line in heard.out if "key" in (record := json.loads(line))]
    assert [(it["key"], it["version"]) for it in events] == [("k1", 7), ("k2", 8), ("k3", 9)]
    assert [it["headers"] for it in events] == [{"a": "b=c"}] * 3


def test_subscribe_prints_history_for_people(url: str, publisher: pubsub_api.Publisher) -> None:
    traced = event("p1")
    traced.headers = {"caller": "me"}
    publisher.send_events([traced, event("p\x1b[31m2")])
    publisher.flush(timeout_s=PATIENCE_S)
    heard = run(
        "subscribe", "tenant-7/port", "--bus", url, "--history", "all", "--count", "2", "--timeout", str(PATIENCE_S),
        "--statistics",
    )  # fmt: skip
    assert heard.process.returncode == exits.OK, heard.errors
    shown = "".join(heard.out)
    assert "resync 1 (initial): read again tenant-7/port" in shown
    assert 'tenant-7/port set port/p1 v1 {"up":true} headers {"caller":"me"}' in shown
    assert "port/p\\x1b[31m2" in shown
    assert "\x1b" not in shown
    assert "│ received" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_subscribe(url: str, publisher: pubsub_api.Publisher, number: signal.Signals) -> None:
    with Command("subscribe", "#", "--bus", url, "--json", "--statistics") as heard:
        assert "resync" in heard.next_record()
        heard.process.send_signal(number)
        assert heard.wait() == exits.INTERRUPTED
        assert "statistics" in json.loads(heard.out[-1])
        assert json.loads(heard.errors.splitlines()[-1]) == {"error": {"message": "interrupted", "exit_code": 130}}


def test_subscribe_ends_when_nobody_reads_it(url: str, publisher: pubsub_api.Publisher) -> None:
    command = [sys.executable, "-m", "heliograph", "subscribe", "#", "--bus", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as heard:
        assert heard.stdout is not None
        assert heard.stderr is not None
        assert heard.stdout.readline().startswith("resync 1")
        heard.stdout.close()

        def has_ended() -> bool:
            publisher.send_event(event("p1"))
            return heard.poll() is not None

        wait_until(has_ended, PATIENCE_S, "the subscriber to notice")
        assert heard.returncode == exits.INTERRUPTED
        assert "Traceback" not in heard.stderr.read()


def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "heliograph", "drivers"]
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=PATIENCE_S
        )
    assert done.returncode == exits.ENVIRONMENT
    assert done.stderr == "heliograph drivers: the operating system refused it: [Errno 28] No space left on device\n"


def test_subscribe_without_anybody_to_listen_to(url: str) -> None:
    heard = run("subscribe", "#", "--bus", url, "--timeout", "0.2")
    assert heard.process.returncode == exits.ENVIRONMENT
    assert "no publisher or server was reached within 0.2 s" in heard.errors


def test_publish_where_somebody_else_publishes(url: str, publisher: pubsub_api.Publisher) -> None:
    sent = run("publish", "--bus", url, "--topic", "t", "--table", "x", "--key", "k")
    assert sent.process.returncode == exits.ENVIRONMENT
    assert "one process per address can publish" in sent.errors


def test_publish_without_a_server() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{holder.getsockname()[1]}"
        sent = run("publish", "--bus", url, "--topic", "t", "--table", "x", "--key", "k")
    assert sent.process.returncode == exits.ENVIRONMENT
    assert "the server cannot be reached" in sent.errors
    assert "perhaps none reached a subscriber" in sent.errors
    assert "published" not in sent.errors
    assert "Traceback" not in sent.errors


def test_cache_keeps_what_passes(url: str, publisher: pubsub_api.Publisher) -> None:
    arguments = ("--listen", publisher.address, "--bus", f"{url}-cache", "--report", "0.2", "--json")
    with Command("cache", "--topics", "tenant-7/#", *arguments) as cache:
        assert cache.next_record() == {"address": f"{publisher.address}-cache"}

        def has_stored() -> bool:
            publisher.send_event(event("p1"))
            return bool(cache.next_record()["stored"])

        wait_until(has_stored, PATIENCE_S, "the cache to store a frame")
        cache.process.send_signal(signal.SIGTERM)
        assert cache.wait() == exits.OK, cache.errors
        assert json.loads(cache.out[-1])["bytes"] > 0


def test_decode_reads_what_was_captured(url: str, publisher: pubsub_api.Publisher, tmp_path: pathlib.Path) -> None:
    """Frames as a driver delivers them, read back by the independent reader."""
    captured: list[bytes] = []
    driver = pubsub_api.loading.build_driver(pubsub_api.loading.conf_from_url(url))

    class Capture:
        def on_frames(self, frames: Any) -> None:
            captured.extend(frames)

        def on_foreign(self, topic: str, payload: bytes | None) -> None: ...

        def on_link(self, report: object) -> None: ...

    end = driver.get_subscriber()
    end.initialize(Capture())
    end.register_topic("tenant-7/port")
    end.register_listen_address(publisher.address)
    end.daemonize()

    def has_captured() -> bool:
        publisher.send_event(event("p1"))
        return bool(captured)

    wait_until(has_captured, PATIENCE_S, "a frame")
    end.close()
    (tmp_path / "capture").write_bytes(b"".join(captured))
    decoded = run("decode", str(tmp_path / "capture"), "--json")
    assert decoded.process.returncode == exits.OK, decoded.errors
    records = [json.loads(line) for line in decoded.out]
    assert len(records) == len(captured)
    assert {record["guid"] for record in records} == {publisher.guid.hex()}
    assert [record for record in records if record["kind"] == "DATA"][0]["events"][0]["value"] == {"up": True}


def own_url() -> str:
    """A bus at a port that nobody takes while the service, which is killed, is away from it."""
    return f"zmq://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("driver", ["zmq", pytest.param("memory", marks=pytest.mark.chaos)])
def test_demo_proves_its_point(driver: str) -> None:
    where = ("--bus", own_url()) if driver == "zmq" else ("--driver", driver)
    demo = run("demo", "--seconds", "3", "--controllers", "2", "--writers", "2", *where, "--json")
    assert demo.process.returncode == exits.OK, demo.errors
    outcome = json.loads(demo.out[0])
    assert outcome["is_equal"] is True
    assert outcome["driver"] == driver
    assert [it["is_equal"] for it in outcome["controllers"]] == [True] * 2
    assert {it["rows"] for it in outcome["controllers"]} == {outcome["rows"]}
    assert all(it["received"] and it["resyncs"] >= 1 for it in outcome["controllers"])


def test_demo_for_people(tmp_path: pathlib.Path) -> None:
    picture = tmp_path / "demo.svg"
    demo = run(
        "demo", "--seconds", "1", "--controllers", "1", "--rate", "50", "--bus", own_url(), "--svg", str(picture)
    )
    assert demo.process.returncode == exits.OK, demo.errors
    shown = "".join(demo.out)
    drawn = html.unescape(picture.read_text()).replace("\N{NO-BREAK SPACE}", " ")
    for scene in ("SIGSTOP", "goes on", "SIGKILL", "is back", "the changes stop", "Proven: all 1 copies are equal"):
        assert scene in shown
        assert scene in drawn
    assert "url(http" not in drawn, "it asks no other host"


def test_an_interrupted_demo_leaves_nothing_behind() -> None:
    with Command("demo", "--seconds", "600", "--controllers", "1") as demo:
        wait_until(lambda: "frames get lost" in demo.next_line(), PATIENCE_S, "the demonstration to begin")
        actors = children_of(demo.process.pid)
        assert len(actors) == 3, "a service, writers, a controller"
        wait_until(lambda: any(map(children_of, actors)), PATIENCE_S, "forked writers")
        actors += [child for actor in actors for child in children_of(actor)]
        demo.process.send_signal(signal.SIGTERM)
        assert demo.wait() == exits.INTERRUPTED
        wait_until(lambda: not any(map(is_alive, actors)), PATIENCE_S, "the actors to be gone")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_actor_that_dies_ends_the_demo() -> None:
    with Command("demo", "--seconds", "600", "--controllers", "1") as demo:
        wait_until(lambda: "frames get lost" in demo.next_line(), PATIENCE_S, "the demonstration to begin")
        os.kill(children_of(demo.process.pid)[-1], signal.SIGKILL)
        assert demo.wait() == exits.ENVIRONMENT
        assert "ended with status -9" in demo.errors
