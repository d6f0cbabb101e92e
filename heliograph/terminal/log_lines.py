"""How the command writes log lines on standard error: lines to read, or a JSON object per line for collectors."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """One object per record.  Fields that a record was given by ``extra`` are fields of the object."""

    _OWN = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in vars(record).items() if name not in self._OWN and name not in told}
        return json.dumps({**told, **extra}, ensure_ascii=False, default=str)


def formatter(name: str) -> logging.Formatter:
    if name == "json":
        return JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
