"""Sealed segments."""

from __future__ import annotations

from durable_log.testing.log_conformance.base import LogConformanceBase


class SealConformance(LogConformanceBase):
    pass
