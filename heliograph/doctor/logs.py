"""Check of the durable log: does its store answer, and does it keep data safely."""

from __future__ import annotations

import contextlib

from durable_log import config
from durable_log.errors import LogError, LogUnavailable
from durable_log.loading import build_log
from heliograph.doctor.findings import CheckContext, Finding
from pubsub_api.config import LOG_URL
from pubsub_api.errors import HeliographError
from pubsub_api.runtime.plugins import without_password

_CHECK = "log"


def check_log(context: CheckContext) -> list[Finding]:
    """Check the log that ``--log`` or the configuration names, if any.  Does not create one, and writes nothing."""
    if context.conf is None:
        return []
    conf = context.read_conf()
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    url = context.log_url or conf[config.GROUP].url
    if not context.log_url and url == LOG_URL.default:
        return []
    conf.set_override("operation_timeout", max(context.timeout_s, 0.1), group=config.GROUP)
    shown = without_password(url.partition("?")[0])
    try:
        with contextlib.closing(build_log(context.log_url, conf=conf)) as log:
            if not log.exists():
                return [Finding(_CHECK, "ok", f"there is no log at {shown} yet; 'heliograph log record' makes one")]
            log.initialize()
            problems, shards = log.check_settings(), log.shards
    except LogUnavailable as error:
        return [Finding(_CHECK, "failed", str(error), "start the server, or correct [log] url, user and password")]
    except LogError as error:
        return [Finding(_CHECK, "failed", str(error), "do what the message says, or see docs/durable-log.md")]
    except HeliographError as error:
        return [Finding(_CHECK, "failed", str(error), "correct what the message names")]
    if problems:
        fix = "change the settings of the server that the message names"
        return [Finding(_CHECK, "warning", problem, fix) for problem in problems]
    return [Finding(_CHECK, "ok", f"{shown}: {shards} shards, and what is appended is kept")]
