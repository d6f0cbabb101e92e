"""The durability service for longer: many more seeds, fifty services at once, processes killed and networks cut again
and again."""

from __future__ import annotations

import os
import pathlib

import pytest

from durability_service.testing.simulator import PROFILES, run_seeds, simulate
from tests.functional.conftest import Bus, process_bus, redis_server  # noqa: F401  fixtures
from tests.functional.durability_service.test_durability_cuts import delete_beyond_a_cut, survive_a_cut
from tests.functional.durability_service.test_durability_processes import kill_while_aligning
from tests.functional.durability_service.test_durability_processes import (
    test_confirmed_data_survives_any_kill as kill_and_compare,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

FIRST = int(os.environ.get("DURABILITY_SEED", "100000"))


@pytest.mark.parametrize("chunk", range(10))
def test_many_seeds(chunk: int) -> None:
    failures = run_seeds(range(FIRST + 500 * chunk, FIRST + 500 * (chunk + 1)))
    assert not failures, "\n".join(map(str, failures))


def test_fifty_services() -> None:
    report = simulate(3, PROFILES["multitude"])
    assert report.services == 50
    assert report.samples_moved < 10 * report.writes


@pytest.mark.parametrize("seed", range(2, 6))
def test_processes_killed_again_and_again(process_bus: Bus, tmp_path: pathlib.Path, seed: int) -> None:  # noqa: F811
    kill_and_compare(process_bus, tmp_path, seed)


@pytest.mark.parametrize("seed", range(2, 8))
def test_networks_cut_again_and_again(process_bus: Bus, tmp_path: pathlib.Path, seed: int) -> None:  # noqa: F811
    survive_a_cut(process_bus, tmp_path, seed)


def test_deletions_beyond_a_cut(process_bus: Bus, tmp_path: pathlib.Path) -> None:  # noqa: F811
    delete_beyond_a_cut(process_bus, tmp_path)


@pytest.mark.parametrize("seed", range(1, 4))
def test_alignments_interrupted_at_any_moment(process_bus: Bus, tmp_path: pathlib.Path, seed: int) -> None:  # noqa: F811
    kill_while_aligning(process_bus, tmp_path, seed, samples=30_000, kills=6)
