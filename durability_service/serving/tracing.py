"""Where the trace goes: to the log, or to a file of its own with one JSON object per line."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from typing import TextIO

from durability_service.core.effects import Level, Trace
from pubsub_api.runtime.files import open_private

LOG = logging.getLogger(__name__)

_LOG_LEVELS = {
    Level.SEVERE: logging.ERROR,
    Level.WARNING: logging.WARNING,
    Level.INFO: logging.INFO,
    Level.CONFIG: logging.INFO,
}


def _open(path: str) -> TextIO:
    return os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")


class Tracer:
    """Any thread may write."""

    def __init__(self, verbosity: Level, path: str, node: str) -> None:
        self._verbosity = verbosity
        self._node = node
        self._lock = threading.Lock()
        self._file: TextIO | None = _open(path) if path else None
        self.failed = 0
        """Lines that could not be written."""

    def write(self, trace: Trace) -> None:
        if trace.level > self._verbosity:
            return
        if self._file is None:
            fields = ", ".join(f"{name} {value}" for name, value in trace.fields.items())
            LOG.log(_LOG_LEVELS.get(trace.level, logging.DEBUG), "Durability: %s: %s", trace.what, fields)
            return
        line = json.dumps(
            {"time_ns": time.time_ns(), "level": trace.level.name, "node": self._node, "what": trace.what}
            | trace.fields,
            default=str,
        )
        with self._lock:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except (OSError, ValueError) as error:
                self.failed += 1
                LOG.warning("Durability: the trace cannot be written: %s", error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
