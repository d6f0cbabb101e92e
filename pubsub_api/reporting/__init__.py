"""How a process tells of itself: numbers, health and readiness, over HTTP or into a registry of Prometheus."""

from pubsub_api.reporting.endpoint import Endpoint, serve
from pubsub_api.reporting.families import Family, Reading, Sample
from pubsub_api.reporting.report import ProcessReport, Registration

__all__ = ["Endpoint", "Family", "ProcessReport", "Reading", "Registration", "Sample", "serve"]
