"""What every test shares."""

from __future__ import annotations

import hypothesis

# A loaded machine must not fail a property test: how long one example takes says nothing about correctness.
hypothesis.settings.register_profile(
    "heliograph", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("heliograph")
