"""Traces: commits, publications, deliveries, repairs and runs of controllers as spans of OpenTelemetry.

    pubsub_api.tracing.enable()

The context of a trace travels in the headers of events.  Before `enable` is called, OpenTelemetry is not imported, and
no work is done per event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub_api.errors import DriverDependencyMissing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from pubsub_api.spans import Spans

active: Spans | None = None
"""None: there are no traces.  An object that can be traced looks here in its constructor."""


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
