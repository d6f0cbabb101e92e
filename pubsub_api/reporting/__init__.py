"""How a process tells of itself: numbers, health and readiness, over HTTP or into a registry of Prometheus."""

from pubsub_api.reporting.endpoint import Endpoint, serve
from pubsub_api.reporting.families import Family, MetricSample, Reading
from pubsub_api.reporting.report import ProcessReport, ReportRegistration

__all__ = ["Endpoint", "Family", "MetricSample", "ProcessReport", "Reading", "ReportRegistration", "serve"]
