"""The simulator for as long as patience lasts: every profile, with seeds that `./run test` does not use."""

from __future__ import annotations

import pytest

from pubsub_api.testing.simulator import PROFILES, run_seeds

pytestmark = pytest.mark.chaos

FIRST = 1_000_000
SEEDS = {"many_topics": 5, "many_heads": 200}
SEEDS_USUAL = 4_600
"""With these, a hundred thousand runs in all."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PROFILES)
def test_the_delivery_contract_holds_for_long(name: str) -> None:
    failures = run_seeds(FIRST, SEEDS.get(name, SEEDS_USUAL), profile=PROFILES[name])
    assert not failures, "\n\n".join(map(str, failures[:3]))
