"""How tests are spread over processes."""

from __future__ import annotations

import pathlib

from tests.distribution import LONGEST, SPARK_REST, SPARK_STREAMS, place_of, unit_of

ROOT = pathlib.Path(__file__).parents[2]
FILES = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]


def test_what_is_said_to_take_long_is_there() -> None:
    assert set(LONGEST) <= {unit_of(file) for file in FILES}


def test_the_tests_of_a_file_stay_together_and_those_of_spark_are_two_units() -> None:
    assert unit_of("tests/unit/test_a.py::TestB::test_c[d::e]") == "tests/unit/test_a.py"
    assert {unit_of(file) for file in FILES if file.startswith("tests/spark/")} == {SPARK_STREAMS, SPARK_REST}


def test_the_longest_come_first() -> None:
    places = [place_of(f"{file}::test") for file in sorted(FILES, key=place_of)]
    assert places[0] == 0 and places[-1] == len(LONGEST)
