"""Traces: commits, publications, deliveries, repairs and runs of controllers as spans of OpenTelemetry.

    pubsub_api.tracing.enable()

The context of a trace travels in the headers of events.  Before `enable` is called, OpenTelemetry is not imported, and
no work is done per event.

OpenTelemetry calls what the program has put into it: samplers, processors, exporters.  An exception of these is counted
and logged, and what is traced goes on without the span.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pubsub_api.errors import DriverDependencyMissing
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from pubsub_api.spans import Spans

LOG = logging.getLogger(__name__)

active: Spans | None = None
"""None: there are no traces.  An object that can be traced looks here in its constructor."""
_failures = 0
_log = RateLimitedLog(LOG)


def failures() -> int:
    """How often OpenTelemetry has raised in this process, so that a span or a context is missing."""
    return _failures


def note_failure(error: Exception) -> None:
    """Count what OpenTelemetry has raised, and log it at a limited rate."""
    global _failures  # noqa: PLW0603  one number for the process
    _failures += 1
    _log("A span is missing: %s: %s. What it would tell of was done.", type(error).__name__, error, exc_info=error)


def enable(tracer_provider: TracerProvider | None = None) -> None:
    """Make spans in this process, with this provider, or with the one that OpenTelemetry has for the process.

    Publishers, subscribers, databases and controllers that are made from now on are traced; existing ones are not.
    Raises DriverDependencyMissing with the pip extra.
    """
    global active  # noqa: PLW0603  one switch for the process
    try:
        from pubsub_api.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        raise DriverDependencyMissing(
            f"traces need the Python library {error.name!r}: pip install 'heliograph[otel]'"
        ) from error
    active = Spans(tracer_provider)


def disable() -> None:
    """Do not trace objects that are made from now on."""
    global active  # noqa: PLW0603
    active = None
