"""The definition of a correct database driver, as tests.

This class runs all of them with pytest on the driver that is installed under the name in the URL::

    class TestMine(DbConformance):
        url = "mine://127.0.0.1:1234/{name}"

``{name}`` becomes a name that no other test has used, and ``{directory}`` an empty directory.  For a driver whose
databases must be made first, override the fixture `DbConformanceBase.new_url`.

Every wait is for a condition, with a deadline that only a broken driver exceeds.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "base", "concurrency", "digests", "feed", "histories", "lifecycle", "objects", "outbox", "processes", "puts",
    "reports", "snapshots", "transactions", "values",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from nb_api.testing.db_conformance.base import DbConformanceBase  # noqa: E402
from nb_api.testing.db_conformance.concurrency import ConcurrencyConformance  # noqa: E402
from nb_api.testing.db_conformance.digests import DigestConformance  # noqa: E402
from nb_api.testing.db_conformance.feed import FeedConformance  # noqa: E402
from nb_api.testing.db_conformance.histories import HistoryConformance  # noqa: E402
from nb_api.testing.db_conformance.lifecycle import LifecycleConformance  # noqa: E402
from nb_api.testing.db_conformance.objects import ObjectConformance  # noqa: E402
from nb_api.testing.db_conformance.outbox import OutboxConformance  # noqa: E402
from nb_api.testing.db_conformance.processes import ProcessConformance  # noqa: E402
from nb_api.testing.db_conformance.puts import PutConformance  # noqa: E402
from nb_api.testing.db_conformance.reports import ReportConformance  # noqa: E402
from nb_api.testing.db_conformance.snapshots import SnapshotConformance  # noqa: E402
from nb_api.testing.db_conformance.transactions import TransactionConformance  # noqa: E402
from nb_api.testing.db_conformance.values import ValueConformance  # noqa: E402

__all__ = [
    "ConcurrencyConformance",
    "DbConformance",
    "DbConformanceBase",
    "DigestConformance",
    "FeedConformance",
    "HistoryConformance",
    "LifecycleConformance",
    "ObjectConformance",
    "OutboxConformance",
    "ProcessConformance",
    "PutConformance",
    "ReportConformance",
    "SnapshotConformance",
    "TransactionConformance",
    "ValueConformance",
]


class DbConformance(
    ObjectConformance,
    PutConformance,
    ValueConformance,
    TransactionConformance,
    SnapshotConformance,
    DigestConformance,
    FeedConformance,
    HistoryConformance,
    OutboxConformance,
    ReportConformance,
    ConcurrencyConformance,
    ProcessConformance,
    LifecycleConformance,
):
    """The whole suite.  Derive a test class from it."""
