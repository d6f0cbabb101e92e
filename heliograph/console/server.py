"""The server of the console: pages, assets, and one stream of events for each page that is looked at.

A stream begins with every part of its page and goes on with the parts that have changed.  Viewers of the same page
share what is made for it.  Reading needs no password: it listens on loopback only, and refuses
requests whose Host is another name, because a page of a stranger could be led to this address under a name of its own.
"""

from __future__ import annotations

import importlib.resources
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping

from heliograph.console import fleet_pages, overview, search, store_pages, topology
from heliograph.console.acting.desk import BODY_BYTES_MAX, ActionServer
from heliograph.console.layout import ConsolePage, whole
from heliograph.console.live import pages as live_pages
from heliograph.console.sampling import Sampler
from heliograph.console.sources import ConsoleSources
from heliograph.console.tables import Query, parse_query
from pubsub_api.errors import InvalidConfig
from pubsub_api.reporting.answering import AnsweringServer
from pubsub_api.reporting.http import (
    NO_REQUEST,
    READ_ONLY,
    TEXT,
    HttpRequest,
    Page,
    head,
    listen,
    parse_address,
    read_request,
    send_page,
)
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)

REFRESH_S = 2.0
"""Between two events of a stream."""
HEARTBEAT_S = 5.0
"""A stream that has nothing to tell says at least so often that it lives, and how old the numbers are."""
ASKERS_MAX = 256
STREAMS_MAX = 200
"""The rest of the askers get pages."""
ANSWER_S = 10.0
_KEPT_MAX = 200
"""Pages that are kept for other viewers, until the next answer of a source."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without one, a browser does not say where a form comes from
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HTML = "text/html; charset=utf-8"
ASSETS = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_STREAM = "/stream"
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]*)?")

MakePage = Callable[[ConsoleSources, str, Query], ConsolePage]
MAKERS: Mapping[str, MakePage] = {
    "/": overview.overview,
    "/topology": topology.topology,
    "/controllers": fleet_pages.controllers,
    "/member": fleet_pages.member,
    "/publishers": fleet_pages.publishers,
    "/subscribers": fleet_pages.subscribers,
    "/topics": live_pages.topics,
    "/groups": store_pages.groups,
    "/group": store_pages.group,
    "/durability": store_pages.durability,
    "/log": store_pages.log,
    "/search": search.search,
}


class _KeptPage:
    """A page that is made once for all that ask for it at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.page: ConsolePage | None = None


class ConsoleServer(Closeable):
    """Answers until it is closed.  ``sources`` are the caller's, who closes them afterwards.

    Raises InvalidConfig for an address that is not on loopback, AddressInUse, LimitReached.
    """

    def __init__(self, address: str, sources: ConsoleSources, *, target: str = "", token: str | None = None) -> None:
        """``token`` None: there are no actions."""
        host, port = parse_address(address, "the console")
        if not is_loopback(host):
            raise InvalidConfig(
                f"the console has no password, so it listens on loopback only, not at {address}; from another host use "
                "`ssh -L`, or a proxy that asks who it is"
            )
        self._sources = sources
        self._target = target
        self._live: dict[str, MakePage] = dict(MAKERS)
        """Pages that have a stream."""
        self._makers = dict(MAKERS)
        self._further: dict[str, str] = {}
        """Pages that only some consoles have."""
        if sources.tails is not None:
            self._live["/tail"] = live_pages.tail
            self._further["/tail"] = "Tail"
        self._actions: ActionServer | None = None
        if token is not None:
            self._actions = ActionServer(sources, token)
            sources.allows_actions = True
            self._live["/actions"] = self._actions.done
            self._further["/actions"] = "Actions"
            self._makers["/action"] = self._actions.ask
        self._makers.update(self._live)
        folder = importlib.resources.files(__package__).joinpath("assets")
        self._assets = {name: folder.joinpath(name).read_text() for name in ASSETS}
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _KeptPage] = {}
        self._kept_at = (-1, 0)
        """The answers that they were made from, and about when: they show ages."""
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._is_closed = False
        self.pages_made = 0
        """How often a page was made; those that were kept do not count."""
        listener, self.url = listen(host, port, "the console")
        self._sampler = Sampler(*sources.all())
        self._server = AnsweringServer(listener, self._answer, askers_max=ASKERS_MAX, answer_s=ANSWER_S)
        try:
            self._sampler.start()
        except BaseException:
            self.close()
            raise

    @property
    def answers(self) -> int:
        """How often a source has answered, or failed to."""
        return self._sampler.number

    def close(self) -> None:
        """Ends all streams.  Idempotent."""
        self._is_closed = True
        self._sampler.close()
        self._server.close()

    # -- requests

    def _answer(self, sock: socket.socket, deadline: float) -> None:
        request = read_request(sock, deadline, body_bytes_max=BODY_BYTES_MAX if self._actions is not None else 0)
        if request is None:
            return
        path = request.path.removeprefix(_STREAM)
        if request.method == "GET" and path != request.path and path in self._live and _is_from_here(request):
            self._stream(sock, path, request.query)
            return
        page = self._page(request, _shown(sock.getpeername()))
        send_page(sock, page, time.monotonic() + ANSWER_S, is_head=request.method == "HEAD", headers=HEADERS)

    def _page(self, request: HttpRequest, asker: str) -> Page:
        if not request.method:
            return NO_REQUEST
        if not _is_from_here(request):
            return Page(403, TEXT, "this answers to loopback names, such as 127.0.0.1, and not inside other pages\n")
        if request.method == "POST" and self._actions is not None and request.path == "/action":
            answer = self._actions.answer(request, asker)
            with self._lock:
                self._kept = {}  # the next page shows at once what was done
            return answer
        if request.method not in ("GET", "HEAD"):
            return READ_ONLY
        name = request.path.removeprefix("/assets/")
        if name != request.path and name in ASSETS:
            return Page(200, ASSETS[name], self._assets[name])
        if request.path not in self._makers:
            return Page(404, TEXT, f"there are {', '.join(self._makers)}\n")
        try:
            made = self._made(request.path, request.query)
        except Exception as error:
            LOG.exception("The page %s cannot be made.", request.path)
            return Page(500, TEXT, f"this page cannot be made, please report it: {type(error).__name__}: {error}\n")
        return Page(200, _HTML, whole(request.path, made, self._target, self._sampler.number, self._further))

    def _made(self, path: str, query: str) -> ConsolePage:
        """For all viewers of the same page at the same time; a form is made anew for each."""
        if path not in self._live:
            return self._makers[path](self._sources, path, parse_query(query))
        moment = (self._sampler.number, int(time.monotonic() / REFRESH_S))
        with self._lock:
            if moment != self._kept_at or len(self._kept) >= _KEPT_MAX:
                self._kept, self._kept_at = {}, moment
            kept = self._kept.setdefault((path, query), _KeptPage())
        with kept.lock:  # of this page only: a search may have to wait for the database
            if kept.page is None:
                self.pages_made += 1
                kept.page = self._live[path](self._sources, path, parse_query(query))
            return kept.page

    # -- streams

    def _stream(self, sock: socket.socket, path: str, query: str) -> None:
        if not self._streams.acquire(blocking=False):
            busy = Page(503, TEXT, f"{STREAMS_MAX} pages are looked at already\n")
            send_page(sock, busy, time.monotonic() + ANSWER_S, headers=HEADERS)
            return
        try:
            sock.settimeout(ANSWER_S)
            sock.sendall(head(200, {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}))
            self._send_events(sock, path, query)
        finally:
            self._streams.release()

    def _send_events(self, sock: socket.socket, path: str, query: str) -> None:
        """Until the viewer goes away, which is an OSError, or the console is closed."""
        number, sent = -1, dict[str, str]()
        while not self._is_closed:
            # When no source answers, ages rise all the same.
            self._sampler.wait(number, timeout_s=HEARTBEAT_S)
            number = self._sampler.number
            parts = self._made(path, query).parts
            changed = {name: part for name, part in parts.items() if sent.get(name) != part}
            sent.update(changed)
            sock.sendall(_event(number, {"parts": changed, "age_s": self._age_s()}))
            # What comes meanwhile is told together.
            self._sampler.wait_closed(timeout_s=REFRESH_S)

    def _age_s(self) -> float | None:
        """Of the oldest numbers that are shown; None when nothing was told yet."""
        ages = (source.sample.age_s for source in self._sources.all())
        return max((age for age in ages if age is not None), default=None)


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _event(number: int, data: Mapping[str, object]) -> bytes:
    return f"event: parts\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()


def _is_from_here(request: HttpRequest) -> bool:
    """Pages of strangers may have a link to the console, and may not put it, or its streams, into themselves: they
    could not read them, and would take the places of viewers."""
    host = _HOST.fullmatch(request.headers.get("host", ""))
    name = "" if host is None else host["name"].strip("[]")
    is_linked = request.headers.get("sec-fetch-dest") == "document"
    is_own = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return is_loopback(name) and (is_own or is_linked)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
