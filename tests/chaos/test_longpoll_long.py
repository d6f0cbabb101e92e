"""The long-poll protocol in virtual time, for many more seeds than `./run test` has time for."""

from __future__ import annotations

import pytest

from tests.unit.drivers.longpoll.test_longpoll_simulation import SEEDS, survive


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + 600, 50))
def test_whatever_happens_the_invariants_hold(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            survive(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
