"""The definition of a correct driver, as tests.

This class runs all of them with pytest on the driver that is installed under the name in the URL::

    class TestMine(DriverConformance):
        url = "mine://127.0.0.1:0"

`ConformanceBase` has fixtures and methods to override for drivers that need more.  The suite uses only the driver
contract (`pubsub_api.driver`): no numbering, no repair, no session.

Every wait is for a condition, with a deadline that only a broken driver exceeds.  To show that a frame does *not*
arrive, a test sends a second frame after it, the sentinel, and waits for that one.
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
    """The whole suite.  Derive a test class from it."""
