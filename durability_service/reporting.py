"""Metrics and readiness of a durability service, served over HTTP by `pubsub_api.reporting`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub_api.reporting.families import Reading
from pubsub_api.reporting.report import ProcessReport

if TYPE_CHECKING:
    from durability_service.service import DurabilityService


def make_report(service: DurabilityService) -> ProcessReport:
    """A service is ready when every name-space is complete and its status lists no trouble."""
    report = ProcessReport(name=service.node, role="durability-service")
    report.add_source(lambda _number: _readings(service))
    report.add_check("name-spaces", lambda: _incomplete(service))
    report.add_check("service", lambda: "; ".join(service.status().trouble))
    return report


def _readings(service: DurabilityService) -> list[Reading]:
    status = service.status()
    labels = {"name": status.node, "role": status.role}
    whole = {
        "lag": status.lag,
        "peers": sum(one.is_connected for one in status.peers),
        "troubles": len(status.trouble),
        "counters": status.counters,
    }
    spaces = [
        Reading(
            "name_space",
            {**labels, "name_space": space.name},
            {
                "samples": space.samples,
                "is_complete": space.is_complete,
                "is_agreed": space.is_agreed,
                "conflicts": len(space.conflicts),
                "joins": space.joins,
                "replacements": space.replacements,
            },
        )
        for space in status.name_spaces
    ]
    return [Reading("durability", labels, whole), *spaces]


def _incomplete(service: DurabilityService) -> str:
    names = [space.name for space in service.status().name_spaces if not space.is_complete]
    return f"not complete: {', '.join(names)}" if names else ""
