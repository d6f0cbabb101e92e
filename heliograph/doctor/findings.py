"""A finding: what was checked, the result, and how to fix it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from oslo_config import cfg

from pubsub_api import PubSubApi

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.  A warning may be intended; with a failure the bus cannot work."""

    check: str
    status: Status
    detail: str
    fix: str = ""


@dataclasses.dataclass
class CheckContext:
    """What checks read.  A check may set fields that later checks need; they are skipped when one is missing."""

    read_conf: Callable[[], cfg.ConfigOpts]
    """A fresh configuration object each time, so that a check may change it."""
    source: str
    """A description of where the configuration comes from."""
    config_files: list[str]
    timeout_s: float
    """How long to wait for a server, a publisher or an event."""
    log_url: str | None = None
    """URL of the durable log; None means that of the configuration."""
    conf: cfg.ConfigOpts | None = None
    driver: PubSubApi | None = None
    is_reachable: bool = True
    """False when the server behind the driver did not answer."""


Check = Callable[[CheckContext], list[Finding]]
