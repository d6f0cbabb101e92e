"""What a publisher service tells of itself over HTTP (`pubsub_api.reporting`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pubsub_api.reporting.report import ProcessReport

if TYPE_CHECKING:
    from publisher_service.service import PublisherService

_PLAIN = ("workers", "workers_remembered", "reload_failures")
_NESTED = {
    "hop": ("duplicate_batches", "unproven_batches", "bad_connections"),
    "sequencer": ("refused_events", "transport_failures", "journal_failures"),
}


def make_report(service: PublisherService) -> ProcessReport:
    """Of a service that is started.  Its own failure is a reason to start the process anew."""
    report = ProcessReport(name=service.publisher.name, role="publisher-service")
    report.add_session(service.session, name="service")
    report.add("publisher_service", lambda: _numbers(service.report()), name=service.publisher.name)
    report.add_check("service", lambda: "" if service.is_well else "a part of it has stopped working", is_vital=True)
    if service.upkeep is not None:
        report.add_check("database", lambda: str((service.report()["database"] or {}).get("problem") or ""))
    return report


def _numbers(told: dict[str, Any]) -> dict[str, float]:
    database = told["database"] or {}
    numbers = {"is_well": bool(told["ok"]), **{name: told[name] for name in _PLAIN}}
    for part, names in _NESTED.items():
        numbers |= {name: told[part][name] for name in names}
    if database:
        numbers["is_elected"] = bool(database.get("leader"))
        found = {"database_revision": database.get("revision"), "outbox": database.get("outbox")}
        numbers |= {name: value for name, value in found.items() if isinstance(value, int)}
    return numbers
