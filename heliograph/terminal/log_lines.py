"""Where the log of a command goes: text or a JSON object per line on standard error, or wherever the options of
oslo.log in the configuration say."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

FORMATS = ("text", "json", "oslo")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object per record, with the fields that the caller gave by ``extra``."""

    _OWN = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in vars(record).items() if name not in self._OWN and name not in fields}
        return json.dumps({**fields, **extra}, ensure_ascii=False, default=str)


@contextlib.contextmanager
def written(form: str, level: str, config_files: Sequence[str]) -> Iterator[None]:
    """Inside the ``with``, log records are written; after it the root logger is as before.  With oslo.log its own
    options decide the level.

    Raises DriverDependencyMissing, InvalidConfig.
    """
    root = logging.getLogger()
    handlers, previous, hook = root.handlers[:], root.level, sys.excepthook
    try:
        if form == "oslo":
            _set_up_oslo_log(config_files)
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
            root.addHandler(handler)
            root.setLevel(level.upper())
        yield
    finally:
        for further in set(root.handlers).difference(handlers):
            further.close()
        root.handlers[:] = handlers
        root.setLevel(previous)
        sys.excepthook = hook


def _set_up_oslo_log(config_files: Sequence[str]) -> None:
    from pubsub_api.errors import DriverDependencyMissing, InvalidConfig

    try:
        from oslo_config import cfg
        from oslo_log import log
    except ImportError as error:
        raise DriverDependencyMissing("--log-format oslo needs oslo.log: pip install 'heliograph[oslo]'") from error
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    try:
        conf([], project="heliograph", default_config_files=list(config_files), default_config_dirs=[])
        if not (conf.log_file or conf.log_dir or conf.use_journal):
            conf.set_override("use_stderr", True)  # its default is standard output, which is for results
        log.setup(conf, "heliograph")
    except (cfg.Error, log.LogConfigError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidConfig(f"oslo.log cannot be set up: {error}") from error
