"""Every shipped driver, against the suite that defines a correct one."""

from __future__ import annotations

from pubsub_api.testing.conformance import DriverConformance


class TestMemory(DriverConformance):
    url = "memory://conformance"
    multi_process = False
