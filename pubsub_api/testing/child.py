"""A publisher or a subscriber in a process of its own, for tests that need more than one.

``python -m pubsub_api.testing.child publisher URL`` and ``... subscriber URL ADDRESS FILTER...`` read commands from
standard input and answer on standard output, one JSON object per line.  The end of the input ends the process, so that
nothing is left behind when the test dies.  `ChildProcess` is the other end of that conversation.

publisher
    says ``{"address": ...}`` when it can send, then answers ``{"send": topic, "count": n, "size": bytes}`` with
    ``{"guid": hex, "last": number}``.  It answers every query with one reply.
subscriber
    says ``{"connected": true}`` when its link is up, then answers ``{"heard": topic}`` with
    ``{"numbers": [...]}``, the numbers of the DATA frames it heard on that topic.
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
from typing import Any, Protocol, TypeVar

from pubsub_api import loading
from pubsub_api.core.frame import Kind
from pubsub_api.driver import PubSubApi
from pubsub_api.errors import HeliographError, TransportUnavailable, WaitTimeout
from pubsub_api.testing.frames import Frames, header
from pubsub_api.testing.receivers import RecordingReceiver, eventually

START_S = 60.0
"""How long a process may take to start and to answer, on a machine that has other things to do."""

Message = dict[str, Any]


class _HasClose(Protocol):
    def close(self) -> object: ...


Store = TypeVar("Store", bound=_HasClose)


class ChildProcess:
    """The parent's handle.  Use it in a ``with``: leaving it kills the process."""

    def __init__(self, role: str, url: str, *arguments: str, module: str = "pubsub_api.testing.child") -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, role, url, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="child-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def receive(self, timeout_s: float = START_S) -> Message:
        """The next thing it says.  Raises WaitTimeout, and HeliographError when it has died."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise WaitTimeout(f"the child process said nothing for {timeout_s} s") from None
        if not line:
            raise HeliographError(f"the child process ended with status {self._process.wait(START_S)}")
        message: Message = json.loads(line)
        return message

    def ask(self, **command: Any) -> Message:
        """Give a command and wait for the answer."""
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
        """End it at once, whatever it is doing.  It gets no chance to say good-bye to its peers."""
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
    """The life of a child process that works on a database or a log: open the one that the last argument names, say
    ``{"ready": true}``, then answer every command until the input ends."""
    with contextlib.closing(open_store(sys.argv[-1])) as store:
        _say({"ready": True})
        for command in _commands():
            for answer in answers(store, command):
                _say(answer)


def _say(message: Message) -> None:
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
        _say({"address": publisher.address})
        for command in _commands():
            last = 0
            for _ in range(command["count"]):
                frame = frames.data(command["send"], command["size"])
                last = header(frame).first
                eventually(_sending(publisher.send, command["send"], frame), "the transport accepts a frame")
            _say({"guid": frames.guid.hex(), "last": last})
    finally:
        publisher.close()


def _sending(send: Callable[[str, bytes], None], topic: str, frame: bytes) -> Callable[[], bool]:
    def is_sent() -> bool:
        try:
            send(topic, frame)
        except TransportUnavailable:
            return False
        return True

    return is_sent


def _subscribe(driver: PubSubApi, address: str, filters: Sequence[str]) -> None:
    subscriber, heard = driver.get_subscriber(), RecordingReceiver()
    try:
        subscriber.initialize(heard)
        for topic_filter in filters:
            subscriber.register_topic(topic_filter)
        subscriber.register_listen_address(address)
        subscriber.daemonize()
        heard.wait_connected(address, timeout_s=START_S)
        _say({"connected": True})
        for command in _commands():
            headers = [header(frame) for frame in tuple(heard.frames)]
            numbers = [seen.first for seen in headers if seen.kind == Kind.DATA and seen.topic == command["heard"]]
            _say({"numbers": numbers})
    finally:
        subscriber.close()


def main(arguments: Sequence[str]) -> None:
    """Play the role that the arguments name, until the input ends."""
    role, url, *rest = arguments
    driver = loading.build_driver(loading.conf_from_url(url))
    if role == "publisher":
        _publish(driver)
    else:
        _subscribe(driver, rest[0], rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
