"""A console in this process, and those who look at it without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from heliograph import parsing
from heliograph.console.server import ConsoleServer
from heliograph.console.sources import ConsoleSources
from tests.helpers.waiting import WAIT_S, wait_until


class Got(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str


class OpenConsole(NamedTuple):
    server: ConsoleServer
    sources: ConsoleSources

    def get(self, path: str, *, method: str = "GET", host: str | None = None) -> Got:
        return get(self.server.url, path, method=method, host=host)

    def wait_shown(self, path: str, text: str) -> str:
        """The page, once it has the text."""
        return wait_until(lambda: body if text in (body := self.get(path).body) else "", what=f"{text!r} on {path}")


@contextlib.contextmanager
def opened(*words: str) -> Iterator[OpenConsole]:
    """As ``heliograph console`` opens it with these words, at a free port."""
    args = parsing.parse(["console", "--address", "0", *words])
    with ConsoleSources(args) as sources, ConsoleServer(args.address, sources) as server:
        yield OpenConsole(server, sources)


def get(url: str, path: str, *, method: str = "GET", host: str | None = None) -> Got:
    place = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(place, timeout=WAIT_S)) as connection:
        connection.request(method, path, headers={"Host": host or place})
        answer = connection.getresponse()
        return Got(answer.status, dict(answer.getheaders()), answer.read().decode())


class Viewer:
    """Who looks at a page: reads its stream.  Close it."""

    def __init__(self, url: str, path: str) -> None:
        self._connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=WAIT_S)
        self._connection.request("GET", f"/stream{path}")
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.headers = dict(self._answer.getheaders())

    def event(self) -> dict[str, Any] | None:
        """The next one; None at the end of the stream."""
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return found
        return None

    def close(self) -> None:
        self._answer.close()
        self._connection.close()
