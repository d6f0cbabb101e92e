"""The HTTP endpoint of a process: ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``.

There is no password: it is on loopback unless the address says otherwise.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from typing import Any

from pubsub_api.reporting.answering import AnsweringServer
from pubsub_api.reporting.families import CONTENT_TYPE, exposition
from pubsub_api.reporting.http import (
    JSON,
    NO_REQUEST,
    READ_ONLY,
    TEXT,
    HttpRequest,
    Page,
    listen,
    parse_address,
    read_request,
    send_page,
)
from pubsub_api.reporting.report import ProcessReport
from pubsub_api.runtime.closing import Closeable

LOG = logging.getLogger(__name__)


class Endpoint(Closeable):
    """Answers until it is closed.  ``report`` is what it tells; add to it at any time."""

    def __init__(
        self, listener: socket.socket, url: str, report: ProcessReport, status: Callable[[], dict[str, Any]]
    ) -> None:
        self.report = report
        self.url = url
        self._status = status
        self._pages = {
            "/metrics": self._metrics,
            "/healthz": lambda: self._verdict(report.problems(only_vital=True)),
            "/readyz": lambda: self._verdict(report.problems()),
            "/status": self._all,
            "/": self._all,
        }
        self._server = AnsweringServer(listener, self._answer)

    def close(self) -> None:
        """Idempotent."""
        self._server.close()

    def _metrics(self) -> Page:
        return Page(200, CONTENT_TYPE, exposition(self.report.families()))

    @staticmethod
    def _verdict(problems: list[str]) -> Page:
        return Page(503 if problems else 200, TEXT, "\n".join(problems or ["ok"]) + "\n")

    def _all(self) -> Page:
        status = self._status()
        return Page(200 if status.get("ok") else 503, JSON, json.dumps(status, default=str) + "\n")

    def _answer(self, sock: socket.socket, deadline: float) -> None:
        request = read_request(sock, deadline)
        if request is not None:
            send_page(sock, self._page(request), deadline, is_head=request.method == "HEAD")

    def _page(self, request: HttpRequest) -> Page:
        if not request.method:
            return NO_REQUEST
        if request.method not in ("GET", "HEAD"):
            return READ_ONLY
        page = self._pages.get(request.path)
        if page is None:
            return Page(404, TEXT, f"there are {', '.join(sorted(self._pages))}\n")
        try:
            return page()
        except Exception as error:
            LOG.exception("The process cannot tell how it is.")
            return Page(503, TEXT, f"{type(error).__name__}: {error}\n")


def serve(
    address: str, report: ProcessReport | None = None, *, status: Callable[[], dict[str, Any]] | None = None
) -> Endpoint:
    """Answer at ``host:port``, or at a port of loopback; port 0 takes a free one.  Close it when done.

    ``status`` replaces what ``/status`` tells; ``ok`` in it decides the HTTP status.  Raises InvalidConfig for an
    address that is none, AddressInUse, LimitReached.
    """
    report = report or ProcessReport()
    listener, url = listen(*parse_address(address), "metrics")
    return Endpoint(listener, url, report, status or report.status)
