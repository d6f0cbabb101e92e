"""What every test shares."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# The longpoll driver sets this, too late when some other test has imported gRPC before: a forked child could crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Whoever starts the tests in the background may have SIGINT ignored, and programs that are started inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine must not fail a property test: how long one example takes says nothing about correctness.
hypothesis.settings.register_profile(
    "heliograph", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("heliograph")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file run in one process, in order, because they share servers; those of Spark share one session."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = "spark" if file.startswith("tests/spark/") else file
        item.add_marker(pytest.mark.xdist_group(group))
