"""The embedded log, against the suite that defines a correct driver."""

from __future__ import annotations

from durable_log.testing.log_conformance import LogConformance


class TestSqliteLog(LogConformance):
    url = "sqlite://{directory}/{name}.db"
