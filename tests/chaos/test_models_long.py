"""Caches and queues against models of them, with many times the examples that `./run test` tries."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.helpers.cache_model import CacheMachine
from tests.unit.nb_api.test_cache_indexes import IndexMachine, SelectingMachine
from tests.unit.nb_api.test_work_queue import QueueMachine

pytestmark = pytest.mark.chaos

EXAMPLES = 2_000
STEPS = 40


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", [CacheMachine, IndexMachine, SelectingMachine, QueueMachine])
def test_whatever_happens_ends_as_the_model_says(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))  # type: ignore[no-untyped-call]
