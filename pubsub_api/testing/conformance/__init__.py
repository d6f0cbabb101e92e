"""The definition of a correct driver, as tests.

One line of pytest runs all of it on a driver that is installed under the entry point that the URL names::

    class TestMine(DriverConformance):
        url = "mine://127.0.0.1:0"

What a driver may need beyond that is in `ConformanceBase`: fixtures and methods to override.  The suite speaks to the
driver contract (`pubsub_api.driver`) alone: no numbering, no repair, no session.

Every wait is for a condition, with a deadline that only a broken driver meets.  That something does *not* arrive is
shown by a sentinel which was sent after it and did arrive.
"""

from __future__ import annotations

import pytest

_PARTS = ("base", "delivery", "forks", "lifecycle", "links", "processes", "queries", "stage", "topics")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from pubsub_api.testing.conformance.base import ConformanceBase  # noqa: E402
from pubsub_api.testing.conformance.delivery import DeliveryConformance  # noqa: E402
from pubsub_api.testing.conformance.forks import ForkConformance  # noqa: E402
from pubsub_api.testing.conformance.lifecycle import LifecycleConformance  # noqa: E402
from pubsub_api.testing.conformance.links import LinkConformance  # noqa: E402
from pubsub_api.testing.conformance.processes import ProcessConformance  # noqa: E402
from pubsub_api.testing.conformance.queries import QueryConformance  # noqa: E402
from pubsub_api.testing.conformance.topics import TopicConformance  # noqa: E402

__all__ = [
    "ConformanceBase",
    "DeliveryConformance",
    "DriverConformance",
    "ForkConformance",
    "LifecycleConformance",
    "LinkConformance",
    "ProcessConformance",
    "QueryConformance",
    "TopicConformance",
]


class DriverConformance(
    DeliveryConformance,
    TopicConformance,
    LinkConformance,
    QueryConformance,
    LifecycleConformance,
    ProcessConformance,
    ForkConformance,
):
    """All of it.  Subclass this."""
