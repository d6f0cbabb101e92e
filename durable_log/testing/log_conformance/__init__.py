"""The definition of a correct log driver, as tests.

One line of pytest runs all of it on a driver that is installed under the entry point that the URL names::

    class TestMine(LogConformance):
        url = "mine://127.0.0.1:1234/{name}"

``{name}`` becomes a name that no other test has used, and ``{directory}`` an empty directory.  A driver whose logs must
be made first overrides the fixture `LogConformanceBase.new_url`.

Every wait is for a condition, with a deadline that only a broken driver meets.
"""

from __future__ import annotations

import pytest

_PARTS = ("appending", "base", "growing", "lifecycle", "processes", "reading", "records", "sealing", "trimming")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from durable_log.testing.log_conformance.appending import AppendConformance  # noqa: E402
from durable_log.testing.log_conformance.base import LogConformanceBase  # noqa: E402
from durable_log.testing.log_conformance.growing import GrowConformance  # noqa: E402
from durable_log.testing.log_conformance.lifecycle import LifecycleConformance  # noqa: E402
from durable_log.testing.log_conformance.processes import ProcessConformance  # noqa: E402
from durable_log.testing.log_conformance.reading import ReadConformance  # noqa: E402
from durable_log.testing.log_conformance.records import RecordConformance  # noqa: E402
from durable_log.testing.log_conformance.sealing import SealConformance  # noqa: E402
from durable_log.testing.log_conformance.trimming import TrimConformance  # noqa: E402

__all__ = [
    "AppendConformance",
    "GrowConformance",
    "LifecycleConformance",
    "LogConformance",
    "LogConformanceBase",
    "ProcessConformance",
    "ReadConformance",
    "RecordConformance",
    "SealConformance",
    "TrimConformance",
]


class LogConformance(
    AppendConformance,
    ReadConformance,
    TrimConformance,
    RecordConformance,
    SealConformance,
    GrowConformance,
    ProcessConformance,
    LifecycleConformance,
):
    """All of it.  Subclass this."""
