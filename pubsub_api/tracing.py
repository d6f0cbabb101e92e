"""Traces: commits, publications, deliveries, repairs and runs of controllers as spans of OpenTelemetry.

    pubsub_api.tracing.enable()

The context of a trace travels in the headers of events.  Until `enable` is called nothing of OpenTelemetry is imported,
and nothing is done per event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub_api.errors import DriverDependencyMissing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from pubsub_api.spans import Spans

active: Spans | None = None
"""What makes spans; None when there are no traces.  An object that could be traced looks here when it is made."""


def enable(tracer_provider: TracerProvider | None = None) -> None:
    """Make spans in this process, by a provider or by the one that OpenTelemetry has for the process.

    Publishers, subscribers, databases and controllers that are made from now on are traced; those that exist are not.
    Raises DriverDependencyMissing, which names the pip extra.
    """
    global active  # noqa: PLW0603  it is the switch
    try:
        from pubsub_api.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        raise DriverDependencyMissing(
            f"traces need the Python library {error.name!r}: pip install 'heliograph[otel]'"
        ) from error
    active = Spans(tracer_provider)


def disable() -> None:
    """Trace nothing that is made from now on."""
    global active  # noqa: PLW0603
    active = None
