"""A seed is the same run in every process: whatever a simulator finds can be found again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEDS = 6


@pytest.mark.parametrize("package", ["pubsub_api", "durability_service", "shared_subscriptions"])
def test_a_seed_does_not_depend_on_how_the_process_hashes(package: str) -> None:
    """Sets have another order in each process."""
    program = f"from {package}.testing.simulator import simulate\nfor s in range({SEEDS}): print(simulate(s).digest)"
    found = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ).stdout.split()
        for hashes in ("0", "1")
    ]  # fmt: skip
    assert len(found[0]) == SEEDS
    assert found[0] == found[1]
