"""Style that a reader feels and a formatter does not check, over the whole tree."""

from __future__ import annotations

import ast
import os
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.helpers import source_trees
from tests.helpers.paths import ROOT

FILE_LINES_MAX = 600
PRODUCT_FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ATTRIBUTES_MAX = 25

# Packages that are imported by other people's programs, which own the terminal.
LIBRARIES = (
    "pubsub_api", "drivers", "nb_api", "durable_log", "publisher_service", "durability_service", "shared_subscriptions",
    "spark_pipeline",
)  # fmt: skip

PRODUCT = (*LIBRARIES, "heliograph")

PACKAGE_LINES_MAX = {
    "drivers": 20_270,
    "durability_service": 10_300,
    "durable_log": 8_640,
    "heliograph": 11_250,
    "nb_api": 17_500,
    "publisher_service": 3_420,
    "pubsub_api": 19_050,
    "shared_subscriptions": 10_700,
    "spark_pipeline": 5_400,
}
"""Growth is a decision: a change that needs more lines raises the number of its package (decision 0060)."""

SUFFIXES = {"", ".cfg", ".conf", ".ini", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
SKIPPED = {"__pycache__", "build", "dist", "results", "venv"}
UNLIMITED = {pathlib.Path(name) for name in ("etc/heliograph.conf", "docs/modules.md", "CHANGELOG.md")}
"""Generated, or longer with every release."""

# Spelt with character classes, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|X{3})\b")
MACHINE = re.compile(r"(?<![\w.])/(?:hom[e]|User[s]|roo[t]|wor[k])/\w|--(?:extra-)?index-ur[l]|PIP_INDE[X]")
NUMBERED = re.compile(r"[\s=(]\?[0-9]\b")
"""A numbered placeholder of SQL, of which Python 3.12 warns before 3.12.4."""


def text_files() -> list[pathlib.Path]:
    """Every text file a person maintains, relative to the root of the checkout."""
    found: list[pathlib.Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not _is_skipped(name)]
        found += [(pathlib.Path(folder) / name).relative_to(ROOT) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.suffix in SUFFIXES)


def _is_skipped(folder: str) -> bool:
    return folder in SKIPPED or folder.endswith(".egg-info") or (folder.startswith(".") and folder != ".ci")


def python_files() -> list[pathlib.Path]:
    return [path for path in text_files() if path.suffix == ".py"]


def trees() -> dict[pathlib.Path, ast.Module]:
    """File -> its syntax tree."""
    return source_trees.parse(python_files())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def own_attributes(class_: ast.ClassDef) -> set[str]:
    """What methods of the class assign to ``self``."""
    return {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def matching_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_files_are_short_enough_to_read() -> None:
    sizes = {path: len((ROOT / path).read_text().splitlines()) for path in text_files() if path not in UNLIMITED}
    assert {path: lines for path, lines in sizes.items() if lines > _lines_max(path)} == {}


def _lines_max(path: pathlib.Path) -> int:
    is_product = path.suffix == ".py" and path.parts[0] in PRODUCT
    return PRODUCT_FILE_LINES_MAX if is_product else FILE_LINES_MAX


@pytest.mark.parametrize("package", PRODUCT)
def test_a_package_grows_by_decision(package: str) -> None:
    files = [path for path in python_files() if path.parts[0] == package]
    lines = sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= PACKAGE_LINES_MAX[package], f"{package} has {lines} lines: shorten it, or raise its bound"


def test_functions_are_short_enough_to_read() -> None:
    long = [
        f"{path}:{function.lineno}: {function.name}"
        for path, tree in trees().items()
        for function in functions(tree)
        if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_objects_have_few_enough_attributes_to_hold_in_mind() -> None:
    large = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in trees().items()
        if path.parts[0] in PRODUCT
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and len(own_attributes(node)) > ATTRIBUTES_MAX
    ]
    assert large == []


def test_a_class_name_means_one_class() -> None:
    """But for test kits: each simulator has a network, and each contract a suite, that play the same part."""
    places: dict[str, list[str]] = {}
    for path, tree in trees().items():
        if path.parts[0] in PRODUCT and "testing" not in path.parts:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [str(path) for path, tree in trees().items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_nothing_is_left_unfinished() -> None:
    assert matching_lines(UNFINISHED) == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert matching_lines(MACHINE) == []


def test_placeholders_of_sql_have_no_numbers() -> None:
    assert matching_lines(NUMBERED) == []


@pytest.mark.parametrize("package", [name for name in LIBRARIES if (ROOT / name).is_dir()])
def test_libraries_do_not_print(package: str) -> None:
    prints = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if path.parts[0] == package
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


def test_tests_wait_on_conditions_and_not_for_a_time() -> None:
    sleeping = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if path.parts[0] == "tests" and path != pathlib.Path("tests/helpers/waiting.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
    ]
    assert sleeping == []


def test_every_helper_of_tests_is_found_by_what_it_is_for() -> None:
    folder = pathlib.Path("tests/helpers")
    listed = re.findall(r"``(\w+)``", ast.get_docstring(trees()[folder / "__init__.py"]) or "")
    assert sorted(set(listed) - {"etc"}) == sorted(path.stem for path in trees() if path.parent == folder)[1:]


def test_the_changelog_has_this_version_and_a_place_for_what_comes_after_it() -> None:
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    version = re.search(r"^version = (\S+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert version is not None
    assert [text.split("]")[0] for text in releases[:2]] == ["[Unreleased", f"[{version[1]}"]
    assert re.search(r"^- \S", releases[1], re.MULTILINE), "nothing is said of this version"


@pytest.mark.parametrize(
    ("pattern", "backwards"),
    [
        (UNFINISHED, "retal :ODOT #"),
        (UNFINISHED, "EMXIF"),
        (MACHINE, "x/oj/emoh/ dc"),
        (MACHINE, "niam/krow/"),
        (NUMBERED, "1? = drahs EREHW"),
        (MACHINE, "elpmaxe//:sptth lru-xedni-- llatsni pip"),
    ],
)
def test_the_patterns_find_what_they_should(pattern: re.Pattern[str], backwards: str) -> None:
    assert pattern.search(backwards[::-1])


@pytest.mark.parametrize("line", ["a todo list", "the network/homework/x", "seeds/001", "docs/work/flow.md"])
def test_the_patterns_leave_the_rest_alone(line: str) -> None:
    assert not UNFINISHED.search(line)
    assert not MACHINE.search(line)
