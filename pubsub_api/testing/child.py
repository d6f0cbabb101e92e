"""A publisher or a subscriber in a process of its own, for tests that need more than one.

``python -m pubsub_api.testing.child publisher URL`` and ``... subscriber URL ADDRESS FILTER...`` read commands from
standard input and answer on standard output, one JSON object per line.  The end of the input ends the process, so that
none is left when the test ends.  `ChildProcess` is the other side.

publisher
    writes ``{"address": ...}`` when it can send, then answers ``{"send": topic, "count": n, "size": bytes}`` with
    ``{"guid": hex, "last": number}``.  It answers every query with one reply.
subscriber
    writes ``{"connected": true}`` when its link is up, then answers ``{"heard": topic}`` with
    ``{"numbers": [...]}``, the numbers of the DATA frames that it received on that topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, ClassVar, Protocol, TypeVar

from pubsub_api import loading
from pubsub_api.core.frame import Kind
from pubsub_api.driver import PubSubApi
from pubsub_api.errors import HeliographError, WaitTimeout
from pubsub_api.testing.frames import Frames, header
from pubsub_api.testing.receivers import RecordingReceiver, send_until_accepted

START_S = 60.0
"""How long a process may take to start, and to answer, on a loaded machine."""

Message = dict[str, Any]


class _HasClose(Protocol):
    def close(self) -> object: ...


Store = TypeVar("Store", bound=_HasClose)


class Process(Protocol):
    """What a `ChildProcess` needs of a `subprocess.Popen`."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


def start_python(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """``python -m MODULE ARGUMENTS`` with pipes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


class ChildProcess:
    """The parent's handle.  Use it in a ``with`` block: leaving the block kills the process."""

    start_process: ClassVar[Callable[[str, Sequence[str]], Process]] = staticmethod(start_python)
    """What starts it.  Tests that start hundreds may replace it with what costs less."""

    def __init__(self, role: str, url: str, *arguments: str, module: str = "pubsub_api.testing.child") -> None:
        self._process = type(self).start_process(module, [role, url, *arguments])
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="child-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def receive(self, timeout_s: float = START_S) -> Message:
        """Block for the next message.  Raises WaitTimeout, and HeliographError when the process has ended."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise WaitTimeout(f"the child process wrote nothing for {timeout_s} s") from None
        if not line:
            raise HeliographError(f"the child process ended with status {self._process.wait(START_S)}")
        message: Message = json.loads(line)
        return message

    def ask(self, **command: Any) -> Message:
        """Send a command and block for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self.receive()

    def stop(self) -> None:
        """Freeze the process, as SIGSTOP does."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once with SIGKILL: it can neither send a BYE nor close anything."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")


def work_on(open_store: Callable[[str], Store], answers: Callable[[Store, Message], Iterable[Message]]) -> None:
    """The main function of a child process that uses a database or a log: open the one that the last argument names,
    write ``{"ready": true}``, then answer every command until the input ends."""
    with contextlib.closing(open_store(sys.argv[-1])) as store:
        _write({"ready": True})
        for command in _commands():
            for answer in answers(store, command):
                _write(answer)


def _write(message: Message) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _commands() -> Iterator[Message]:
    return (json.loads(line) for line in sys.stdin)


def _publish(driver: PubSubApi) -> None:
    publisher, frames, reports = driver.get_publisher(), Frames(), RecordingReceiver()
    try:
        publisher.initialize(reports.on_link)
        if not driver.capabilities.bind_based:
            reports.wait_connected(publisher.address, timeout_s=START_S)
        if driver.capabilities.queries:
            publisher.serve(lambda query: [frames.reply(query)])
        _write({"address": publisher.address})
        for command in _commands():
            last = 0
            for _ in range(command["count"]):
                frame = frames.data(command["send"], command["size"])
                last = header(frame).first
                send_until_accepted(publisher, command["send"], frame)
            _write({"guid": frames.guid.hex(), "last": last})
    finally:
        publisher.close()


def _subscribe(driver: PubSubApi, address: str, filters: Sequence[str]) -> None:
    subscriber, received = driver.get_subscriber(), RecordingReceiver()
    try:
        subscriber.initialize(received)
        for topic_filter in filters:
            subscriber.register_topic(topic_filter)
        subscriber.register_listen_address(address)
        subscriber.daemonize()
        received.wait_connected(address, timeout_s=START_S)
        _write({"connected": True})
        for command in _commands():
            headers = [header(frame) for frame in tuple(received.frames)]
            numbers = [one.first for one in headers if one.kind == Kind.DATA and one.topic == command["heard"]]
            _write({"numbers": numbers})
    finally:
        subscriber.close()


def main(arguments: Sequence[str]) -> None:
    """Be the publisher or the subscriber that the arguments name, until the input ends."""
    role, url, *rest = arguments
    driver = loading.build_driver(loading.conf_from_url(url))
    if role == "publisher":
        _publish(driver)
    else:
        _subscribe(driver, rest[0], rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
