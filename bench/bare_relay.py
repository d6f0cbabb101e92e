"""What the hop over another process costs with nothing in it: ``python -m bench.bare_relay``.

The bare parts of the way through the publisher service, in turns with those of the direct way: bytes of the size of an
event go from XPUB to SUB, or through a Unix socket to a process that passes them on from its own XPUB.  No envelope, no
journal, no acknowledgement, every wait a blocking call.  No service that is a process of its own can be faster.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import zmq

from bench.ends import OPEN_TIMEOUT_S
from bench.plan import percentile_us
from bench.workers import Worker

ROUNDS = 12
SAMPLES = 300
_PAUSE_S = 0.001
_STAMP_BYTES = 8
_EVENT = b"x" * 250
_TOPIC = b"topic\0"
_SIZE = _STAMP_BYTES + len(_EVENT)


def _send_all(pipe: Connection, send: Callable[[bytes], object]) -> None:
    """Send, at a thousand a second at most, whenever it is told to."""
    while pipe.recv():
        for _ in range(SAMPLES):
            time.sleep(_PAUSE_S)
            send(time.monotonic_ns().to_bytes(_STAMP_BYTES, "big") + _EVENT)


def _publishing(pipe: Connection, context: zmq.Context[zmq.Socket[bytes]]) -> Callable[[bytes], None]:
    """Say where it is; return what sends when the receiver is there."""
    sock = context.socket(zmq.XPUB)
    sock.bind("tcp://127.0.0.1:*")
    pipe.send(sock.getsockopt_string(zmq.LAST_ENDPOINT))
    sock.recv()

    def send(message: bytes) -> None:
        sock.send(_TOPIC, zmq.SNDMORE)
        sock.send(message)

    return send


def publish(pipe: Connection) -> None:
    _send_all(pipe, _publishing(pipe, zmq.Context()))


def work(pipe: Connection, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        pipe.send("connected")
        _send_all(pipe, sock.sendall)


def relay(pipe: Connection, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        send = _publishing(pipe, zmq.Context())
        worker, _ = listener.accept()
        with worker:
            while message := worker.recv(_SIZE):
                send(message)


def receive(pipe: Connection, address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sock:
        sock.subscribe(_TOPIC)
        sock.connect(address)
        pipe.send("ready")
        while pipe.recv():
            delays = []
            for _ in range(SAMPLES):
                sock.recv()
                message = sock.recv()
                delays.append(time.monotonic_ns() - int.from_bytes(message[:_STAMP_BYTES], "big"))
            pipe.send(delays)


def measure(rounds: int) -> dict[str, list[list[int]]]:
    """Delays of each way, round by round."""
    with contextlib.ExitStack() as stack:
        path = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-bench-"))) / "socket"
        publisher = stack.enter_context(Worker(publish))
        near = stack.enter_context(Worker(receive, publisher.hear()))
        passing = stack.enter_context(Worker(relay, str(path)))
        far = stack.enter_context(Worker(receive, passing.hear()))
        worker = stack.enter_context(Worker(work, str(path)))
        for one in (near, far, worker):
            one.hear()
        ways = {"directly": (publisher, near), "through a process": (worker, far)}
        found: dict[str, list[list[int]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (source, receiver) in ways.items():
                receiver.tell(True)
                source.tell(True)
                found[name].append(receiver.hear(OPEN_TIMEOUT_S))
        return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.bare_relay", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    delays = measure(parser.parse_args().rounds)
    for part in (0.5, 0.99):
        ours, theirs = ([percentile_us(one, part) for one in delays[way]] for way in ("through a process", "directly"))
        times = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
        print(f"p{part * 100:g}: {statistics.median(theirs):.0f} us directly, {statistics.median(ours):.0f} us through "
              f"a process, {times:.2f} times")  # fmt: skip
