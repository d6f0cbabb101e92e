"""How tests are spread over processes."""

from __future__ import annotations

import types

import pytest

from tests.helpers.distribution import CODE, SECONDS, SPARK_REST, SPARK_STREAMS, UnitScheduling, place_of, unit_of
from tests.helpers.paths import ROOT

FILES = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]


def test_what_is_said_to_take_long_is_there() -> None:
    assert SECONDS.keys() <= {unit_of(file) for file in FILES}


def test_the_tests_of_a_file_stay_together_and_those_that_share_more_are_few_units() -> None:
    assert unit_of("tests/unit/test_a.py::TestB::test_c[d::e]") == "tests/unit/test_a.py"
    assert {unit_of(file) for file in FILES if file.startswith("tests/spark/")} == {SPARK_STREAMS, SPARK_REST}
    assert sum(unit_of(file) == CODE for file in FILES) == 4


class Process:
    """A process that runs tests, as xdist sees it."""

    shutting_down = False
    gateway = types.SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.tests: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.tests += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_longest_begin_first_and_no_file_is_run_by_two_processes(pytestconfig: pytest.Config) -> None:
    tests = [f"{file}::test_{number}" for file in FILES for number in range(5)]
    tests.sort(key=place_of)
    option = types.SimpleNamespace(loadscopereorder=False)
    config = types.SimpleNamespace(getvalue=lambda _: ["2*popen"], option=option, hook=pytestconfig.hook)
    scheduling = UnitScheduling(config)  # type: ignore[arg-type]
    processes = [Process(), Process()]
    for process in processes:
        scheduling.add_node(process)  # type: ignore[arg-type]
        scheduling.add_node_collection(process, tests)  # type: ignore[arg-type]
    scheduling.schedule()
    units = [[unit_of(tests[number]) for number in process.tests] for process in processes]
    assert [set(unit) for unit in units] == [{unit} for unit in list(SECONDS)[:2]]
    assert all(len(unit) == 5 * sum(unit_of(file) == unit[0] for file in FILES) for unit in units)
