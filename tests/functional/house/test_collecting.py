"""Several processes that run tests collect each file once together, and run all of its tests."""

from __future__ import annotations

import collections
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET

from tests.helpers.paths import ROOT

CONFTEST = """
import os, pathlib
from tests.helpers import collecting, made_once
def pytest_configure(config):
    config.addinivalue_line("markers", "chaos: left out")
    made_once.begin(config)
    collecting.install(config)
def imported(file):
    with open(pathlib.Path(file).parent / "imported", "a") as said:
        said.write(f"{pathlib.Path(file).name} {os.getpid()}\\n")
"""

ORDINARY = """
imported(__file__)
@pytest.fixture(params=["x", "y"], scope="module")
def letter(request):
    return request.param
def test_plain(letter):
    pass
class TestOfClass:
    @pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.chaos)], ids=["one::1", "two [2]"])
    def test_in_it(self, number, letter):
        pass
@pytest.mark.skip(reason="as an example")
def test_skipped():
    pass
"""
ENDING = """
import os, pathlib
mark = pathlib.Path(__file__).parent / "has ended"
if not mark.exists():
    mark.touch()
    os._exit(1)
def test_after_it():
    pass
"""
OF_ONE_FILE = {"test_plain[x]", "test_plain[y]", "test_in_it[x-one::1]", "test_in_it[y-one::1]", "test_skipped"}
FILES = [f"test_{letter}" for letter in "abcdefgh"]


def run(directory: pathlib.Path, *arguments: str) -> tuple[str, list[tuple[str, str]]]:
    """What a run printed, and the file and the name of each test that it ran."""
    (directory / "conftest.py").write_text(CONFTEST)
    for name in FILES:
        (directory / f"{name}.py").write_text(ORDINARY)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(directory), "-v",
         "-n", "3", "--dist", "loadfile", "-m", "not chaos", "--junitxml", "told.xml", *(arguments or ["."])],
        capture_output=True, text=True, check=False, timeout=250, cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    tests = ET.parse(directory / "told.xml").iter("testcase")
    return done.stdout, [(test.get("classname", "").split(".")[0], test.get("name", "")) for test in tests]


def test_every_test_is_run_once_and_few_processes_import_its_file(tmp_path: pathlib.Path) -> None:
    printed, ran = run(tmp_path)
    assert "32 passed, 8 skipped" in printed, printed
    assert sorted(ran) == sorted((file, test) for file in FILES for test in OF_ONE_FILE)
    imported = collections.Counter(line.split()[0] for line in (tmp_path / "imported").read_text().splitlines())
    assert imported.keys() == {f"{name}.py" for name in FILES}
    assert max(imported.values()) <= 2, "the process that claimed it, and that which ran it"


def test_a_choice_of_tests_is_made_in_each_file(tmp_path: pathlib.Path) -> None:
    printed, ran = run(tmp_path, ".", "-k", "test_in_it and not test_b")
    assert "14 passed" in printed, printed
    assert {file for file, _ in ran} == set(FILES) - {"test_b"}


def test_what_is_named_is_run_as_ever(tmp_path: pathlib.Path) -> None:
    printed, ran = run(tmp_path, "test_a.py::TestOfClass", "test_b.py")
    assert "6 passed, 1 skipped" in printed, printed
    assert {file for file, _ in ran} == {"test_a", "test_b"}


def test_a_file_that_cannot_be_imported_is_told_once_and_the_others_run(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_broken.py").write_text("import there_is_no_such_module")
    printed, _ = run(tmp_path)
    assert "32 passed, 8 skipped, 1 error" in printed, printed
    assert "No module named 'there_is_no_such_module'" in printed


def test_what_a_process_has_claimed_that_ends_others_collect(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_ending.py").write_text(ENDING)
    printed, ran = run(tmp_path)
    assert "33 passed, 8 skipped" in printed, printed
    assert ("test_ending", "test_after_it") in ran
