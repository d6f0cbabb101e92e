"""The server of the console: pages, assets, and a stream of events for each open page.

A stream begins with every part of its page, then sends the parts that have changed.  Viewers of the same page share its
parts.  Reading needs no password, so the server listens on loopback only.  It refuses requests whose Host is another
name: a foreign page could reach this address under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import importlib.resources
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
from pubsub_api.runtime.sockets.addresses import is_loopback

LOG = logging.getLogger(__name__)

REFRESH_S = 2.0
"""Least time between two events of a stream."""
HEARTBEAT_S = 5.0
"""A stream without changes sends an event at least this often, with the age of the numbers."""
ASKERS_MAX = 256
STREAMS_MAX = 200
"""Lower than `ASKERS_MAX`, so that there is always room for requests of pages."""
ANSWER_S = 10.0
_CACHED_PAGES_MAX = 200
"""Pages that are kept for other viewers until the next answer of a source."""

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


class _CachedPage:
    """A page that is made once for all viewers that ask for it at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.page: ConsolePage | None = None


class ConsoleServer(Closeable):
    """Answers requests until it is closed.  The caller closes ``sources`` afterwards.

    Raises InvalidConfig for an address that is not on loopback, AddressInUse, LimitReached.
    """

    def __init__(self, address: str, sources: ConsoleSources, *, target: str = "", token: str | None = None) -> None:
        """Without ``token`` there are no actions."""
        host, port = parse_address(address, "the console")
        if not is_loopback(host):
            raise InvalidConfig(
                f"the console has no password, so it listens on loopback only, not at {address}; from another host use "
                "`ssh -L`, or a proxy that authenticates users"
            )
        self._sources = sources
        self._target = target
        self._live: dict[str, MakePage] = dict(MAKERS)
        """Pages that have a stream."""
        self._makers = dict(MAKERS)
        self._further: dict[str, str] = {}
        """Path -> title of the pages that this console has beside `PAGES`."""
        if sources.tails is not None:
            self._live["/tail"] = live_pages.tail
            self._further["/tail"] = "Tail"
        self._actions: ActionServer | None = None
        if token is not None:
            self._actions = ActionServer(sources, token)
            sources.allows_actions = True
            self._live["/actions"] = self._actions.past_actions
            self._further["/actions"] = "Actions"
            self._makers["/action"] = self._actions.form
        self._makers.update(self._live)
        folder = importlib.resources.files(__package__).joinpath("assets")
        self._assets = {name: folder.joinpath(name).read_text() for name in ASSETS}
        self._lock = threading.Lock()
        self._cached_pages: dict[tuple[str, str], _CachedPage] = {}
        self._cached_at = (-1, 0)
        """Of which answer the cached pages are, and of which period of `REFRESH_S`, because they show ages."""
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._is_closed = False
        self.pages_made = 0
        """How many pages were made; answers from the cache do not count."""
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
        """How often a source has answered or failed."""
        return self._sampler.number

    def close(self) -> None:
        """End all streams.  Idempotent."""
        self._is_closed = True
        self._sampler.close()
        self._server.close()

    # -- requests

    def _answer(self, sock: socket.socket, deadline: float) -> None:
        request = read_request(sock, deadline, body_bytes_max=BODY_BYTES_MAX if self._actions is not None else 0)
        if request is None:
            return
        path = request.path.removeprefix(_STREAM)
        if request.method == "GET" and path != request.path and path in self._live and _is_from_console(request):
            self._stream(sock, path, request.query)
            return
        host, port = sock.getpeername()[:2]
        page = self._page(request, f"{host}:{port}")
        send_page(sock, page, time.monotonic() + ANSWER_S, is_head=request.method == "HEAD", headers=HEADERS)

    def _page(self, request: HttpRequest, asker: str) -> Page:
        if not request.method:
            return NO_REQUEST
        if not _is_from_console(request):
            return Page(403, TEXT, "ask for loopback names only, such as 127.0.0.1, and not from inside other pages\n")
        if request.method == "POST" and self._actions is not None and request.path == "/action":
            answer = self._actions.answer(request, asker)
            with self._lock:
                self._cached_pages = {}  # the next page shows the outcome at once
            return answer
        if request.method not in ("GET", "HEAD"):
            return READ_ONLY
        name = request.path.removeprefix("/assets/")
        if name != request.path and name in ASSETS:
            return Page(200, ASSETS[name], self._assets[name])
        if request.path not in self._makers:
            return Page(404, TEXT, f"the pages are {', '.join(self._makers)}\n")
        try:
            made = self._console_page(request.path, request.query)
        except Exception as error:
            LOG.exception("The page %s cannot be made.", request.path)
            return Page(500, TEXT, f"this page cannot be made, please report it: {type(error).__name__}: {error}\n")
        return Page(200, _HTML, whole(request.path, made, self._target, self._sampler.number, self._further))

    def _console_page(self, path: str, query: str) -> ConsolePage:
        """The page, from the cache if another viewer has just got it.  A form is made anew for each viewer."""
        if path not in self._live:
            return self._makers[path](self._sources, path, parse_query(query))
        moment = (self._sampler.number, int(time.monotonic() / REFRESH_S))
        with self._lock:
            if moment != self._cached_at or len(self._cached_pages) >= _CACHED_PAGES_MAX:
                self._cached_pages, self._cached_at = {}, moment
            cached = self._cached_pages.setdefault((path, query), _CachedPage())
        with cached.lock:  # of this page only: a search may have to wait for the database
            if cached.page is None:
                self.pages_made += 1
                cached.page = self._live[path](self._sources, path, parse_query(query))
            return cached.page

    # -- streams

    def _stream(self, sock: socket.socket, path: str, query: str) -> None:
        if not self._streams.acquire(blocking=False):
            busy = Page(503, TEXT, f"{STREAMS_MAX} pages are open already\n")
            send_page(sock, busy, time.monotonic() + ANSWER_S, headers=HEADERS)
            return
        try:
            sock.settimeout(ANSWER_S)
            sock.sendall(head(200, {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}))
            self._send_events(sock, path, query)
        finally:
            self._streams.release()

    def _send_events(self, sock: socket.socket, path: str, query: str) -> None:
        """Send events until the console is closed.  Raises OSError when the viewer goes away."""
        number, sent = -1, dict[str, str]()
        while not self._is_closed:
            # Without an answer of a source the event shows the rising ages.
            self._sampler.wait(number, timeout_s=HEARTBEAT_S)
            number = self._sampler.number
            parts = self._console_page(path, query).parts
            changed = {name: part for name, part in parts.items() if sent.get(name) != part}
            sent.update(changed)
            sock.sendall(_event(number, {"parts": changed, "age_s": self._age_s()}))
            # Answers that arrive during this pause are sent together.
            self._sampler.wait_closed(timeout_s=REFRESH_S)

    def _age_s(self) -> float | None:
        """The age of the oldest numbers; None when there was no answer yet."""
        ages = (source.sample.age_s for source in self._sources.all())
        return max((age for age in ages if age is not None), default=None)


def _event(number: int, data: Mapping[str, object]) -> bytes:
    return f"event: parts\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()


def _is_from_console(request: HttpRequest) -> bool:
    """Whether a request comes from a page of the console, from a link to it, or from no page.

    A foreign page may link to the console.  It may not embed the console or its streams: it could not read them, and
    they would count as viewers.
    """
    host = _HOST.fullmatch(request.headers.get("host", ""))
    name = "" if host is None else host["name"].strip("[]")
    is_linked = request.headers.get("sec-fetch-dest") == "document"
    is_own = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return is_loopback(name) and (is_own or is_linked)
