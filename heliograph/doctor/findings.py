"""A finding: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from oslo_config import cfg

from pubsub_api import PubSubApi

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A warning is something that may be meant; a failure is something that cannot work."""

    check: str
    status: Status
    detail: str
    fix: str = ""


@dataclasses.dataclass
class CheckContext:
    """What checks are given.  A check may leave here what later ones need; they are skipped when it is missing."""

    read_conf: Callable[[], cfg.ConfigOpts]
    """A fresh configuration object each time, so that a check may change it."""
    source: str
    """Where that configuration comes from, in words."""
    config_files: list[str]
    timeout_s: float
    """How long to wait for a server, a publisher or an event."""
    log_url: str | None = None
    """Of the durable log; None: what the configuration says."""
    conf: cfg.ConfigOpts | None = None
    driver: PubSubApi | None = None
    is_reachable: bool = True
    """False when the server behind the driver did not answer."""


Check = Callable[[CheckContext], list[Finding]]
