"""An object store for tests: moto's S3 server as a process, and a proxy in front of it that misbehaves.

It keeps everything in memory: one that was killed comes back empty.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import os
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence

from obstore.store import S3Store, from_url

from tests.helpers.server_process import ServerProcess

BUCKET = "segments"
ACCESS = {"region": "us-east-1", "access_key_id": "heliograph", "secret_access_key": "hidden-from-messages"}


class S3Server(ServerProcess):
    """A bucket for whoever needs a prefix in it."""

    name = "moto"

    def __init__(self) -> None:
        super().__init__()
        self._names = itertools.count(1)

    def new_prefix(self) -> str:
        """``s3://bucket/prefix`` that nobody has used yet."""
        return f"s3://{BUCKET}/log-{os.getpid()}-{next(self._names)}"

    def options(self, place: str, port: int | None = None) -> str:
        """The part of a log's URL that says where its segments are."""
        return segment_option(place, self.port if port is None else port)

    def objects(self, place: str) -> S3Store:
        """A plain client of what is at a place, for a test to look and to damage."""
        config = {**ACCESS, "endpoint": f"http://127.0.0.1:{self.port}"}
        return from_url(place, config=config, client_options={"allow_http": True})  # type: ignore[arg-type,return-value]

    def environment(self) -> dict[str, str]:
        """What tells a process where the store is, and who it is there."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true", **{f"AWS_{name.upper()}": value for name, value in ACCESS.items()},
        }  # fmt: skip

    def make_bucket(self) -> None:
        assert self._ask("PUT", f"/{BUCKET}") == 200

    def start(self) -> S3Server:
        super().start()
        self.make_bucket()
        return self

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self._ask("GET", "/moto-api/") == 200
        return False

    def _ask(self, method: str, path: str) -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path)
            return connection.getresponse().status


def segment_option(place: str, port: int) -> str:
    query = urllib.parse.urlencode({**ACCESS, "endpoint": f"http://127.0.0.1:{port}", "allow_http": "true"})
    return f"segment_directory={urllib.parse.quote(f'{place}?{query}', safe='')}"


def keys(store: S3Store, suffix: str = "") -> list[str]:
    """Of all objects whose key ends so."""
    return sorted(one["path"] for portion in store.list() for one in portion if one["path"].endswith(suffix))


Rule = Callable[[str, str, Mapping[str, str]], str]
"""Given method, path and headers of a request: what becomes of it, see `S3Proxy`."""


class S3Proxy:
    """Passes requests on as its ``rule`` says of each:

    ``pass``           as they are
    ``unconditional``  without the conditions of a conditional write
    ``lose-answer``    they are done, and the connection is cut instead of an answer
    ``refuse``         the connection is cut, and nothing is done
    """

    def __init__(self, port: int) -> None:
        self.rule: Rule = lambda _method, _path, _headers: "pass"
        self.on_done: Callable[[], None] = lambda: None
        """Called when a request was carried out, before it is answered."""
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fate = proxy.rule(self.command, self.path, dict(self.headers))
                if fate == "refuse":
                    self.close_connection = True
                    return
                dropped = {"if-match", "if-none-match"} if fate == "unconditional" else set()
                headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as server:
                    server.request(self.command, self.path, body, headers)
                    answer = server.getresponse()
                    content = answer.read()
                proxy.on_done()
                if fate == "lose-answer":
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle

            def log_message(self, *_arguments: object) -> None:
                """A test's output is not the place for it."""

        self._server = _Threads(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[S3Proxy]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


class _Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
