"""The record of actions in the console: a log line for each, and the newest on a page."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time

from heliograph.output import printable

LOG = logging.getLogger(__name__)

KEPT_MAX = 200
_TEXT_MAX = 500


@dataclasses.dataclass(frozen=True)
class AuditRecord:
    at_ns: int
    address: str
    who: str
    """The name that the user typed.  It is not checked, because all users share one token."""
    action: str
    target: str
    outcome: str
    is_done: bool


class AuditJournal:
    """Keeps the newest records in memory and logs all.  May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: collections.deque[AuditRecord] = collections.deque(maxlen=KEPT_MAX)

    def write(self, *, address: str, who: str, action: str, target: str, outcome: str, is_done: bool) -> None:
        """Record an action, also one that failed, or that was refused although the token was right."""
        who, target, outcome = map(_one_line, (who, target, outcome))
        record = AuditRecord(time.time_ns(), address, who, action, target, outcome, is_done)
        with self._lock:
            self._records.append(record)
        LOG.warning(
            "Console action: %s %s, by %s from %s: %s", action, target, who, address, outcome,
            extra={"audit": dataclasses.asdict(record)},
        )  # fmt: skip

    def newest(self) -> list[AuditRecord]:
        """Newest first."""
        with self._lock:
            return list(self._records)[::-1]


def _one_line(text: str) -> str:
    """The text on one line, so that a request cannot forge a second line of the log."""
    return " ".join(printable(text[:_TEXT_MAX]).split())
