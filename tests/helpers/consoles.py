"""A console in this process, and those who look at it without a browser."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import re
import urllib.parse
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

    def get(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Got:
        """Headers are written with ``_``."""
        return get(self.server.url, path, method=method, host=host, **headers)

    def post(self, fields: Mapping[str, str] | bytes, *, path: str = "/action", **headers: str) -> Got:
        """A form, as a browser sends it; headers are written with ``_``, an empty one is left out."""
        body = fields if isinstance(fields, bytes) else urllib.parse.urlencode(fields).encode()
        place = urllib.parse.urlsplit(self.server.url).netloc
        told = {
            "Host": place, "Origin": f"http://{place}", "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }  # fmt: skip
        return _asked(self.server.url, "POST", path, {name: value for name, value in told.items() if value}, body)

    def asked(self, do: str, target: str) -> dict[str, str]:
        """The fields that the form of an action has hidden."""
        body = self.get(f"/action?{urllib.parse.urlencode({'do': do, 'target': target})}").body
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', body)
        return {name: html.unescape(value) for name, value in hidden}

    def wait_shown(self, path: str, text: str) -> str:
        """The page, once it has the text."""
        return wait_until(lambda: body if text in (body := self.get(path).body) else "", what=f"{text!r} on {path}")


@contextlib.contextmanager
def opened(*words: str, token: str | None = None) -> Iterator[OpenConsole]:
    """As ``heliograph console`` opens it with these words, at a free port."""
    args = parsing.parse(["console", "--address", "0", *words])
    with ConsoleSources(args) as sources, ConsoleServer(args.address, sources, token=token) as server:
        yield OpenConsole(server, sources)


def get(url: str, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Got:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return _asked(url, method, path, {"Host": host or urllib.parse.urlsplit(url).netloc, **told})


def _asked(url: str, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Got:
    place = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(place, timeout=WAIT_S)) as connection:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
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
