"""The pages that guide a reader through the code name what is there: modules, classes, threads, statistics, places."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import nb_api.api
import nb_api.cache.local_cache
import nb_api.controller.statistics
import nb_api.coordination.discovery
import nb_api.coordination.election
import nb_api.fleet
import pubsub_api.publishing.multiproc
from tests.helpers import code_map, documents
from tests.helpers.code_map import ThreadName
from tests.helpers.documents import plain
from tests.helpers.paths import ROOT
from tests.helpers.statistic_fields import fields_of

WHERE_IS = "docs/where-is.md"
STATISTICS = "docs/statistics.md"
STEPS_MAX = 3
WATCHED_MAX = 18
OLD_NAMES = re.compile(
    r"\b(?:office|duties|slots|lending|standstill|shares)\.py\b|\bnb_api[./](?:outbox|handover)\b|\b\w+[./]hop\b"
)
"""Modules that had such names; history may name them."""
HISTORY = ("docs/decisions", "CHANGELOG.md")


# -- generated from the code


@pytest.mark.parametrize("mark", code_map.GENERATED)
def test_what_is_generated_is_current(mark: str) -> None:
    page, text = code_map.GENERATED[mark]
    assert code_map.replaced(page, mark, text()) == documents.read(page), f"{page} is old; call: {code_map.COMMAND}"


def test_every_folder_says_what_it_is() -> None:
    assert [path for path, tree in code_map.trees().items() if not code_map.first_sentence(tree)] == []


# -- the glossary


def test_every_public_class_name_ends_in_a_term() -> None:
    listed = {row[0] for row in documents.table(code_map.GLOSSARY, "Other class names")}
    missing = [
        f"| {word} | say in one line what it is: {', '.join(f'{one.name} in {one.path}' for one in classes)} |"
        for word, classes in code_map.unexplained_classes().items()
        if not {one.name for one in classes} <= listed
    ]
    assert not missing, f"add to {code_map.GLOSSARY}, or call {code_map.COMMAND}:\n" + "\n".join(missing)


def test_terms_are_sorted_explained_and_still_used() -> None:
    rows = documents.table(code_map.GLOSSARY, "Terms")
    terms = code_map.glossary_terms()
    assert terms == sorted(set(terms))
    assert all(row[1] for row in rows)
    pages = [documents.read(page) for page in documents.pages() if str(page) != code_map.GLOSSARY]
    used = "\n".join([*((ROOT / path).read_text() for path in code_map.trees()), *pages]).lower()
    unused = [term for term in terms if not any(form in used for form in (term, re.sub("[ -]", "_", term)))]
    assert unused == [], f"remove from {code_map.GLOSSARY}: no module and no other page has the word"


# -- threads


def test_the_table_of_threads_is_that_of_the_code() -> None:
    rows = documents.table(code_map.ARCHITECTURE, "Threads")
    stated = {ThreadName(plain(row[0]), plain(row[1])) for row in rows}
    started = code_map.thread_names()
    add = [f"| `{one.name}` | `{one.path}` | process | what for | starts | ends |" for one in sorted(started - stated)]
    remove = [f"{one.name} of {one.path}" for one in sorted(stated - started)]
    assert not add, f"add to the table of {code_map.ARCHITECTURE}:\n" + "\n".join(add)
    assert not remove, f"remove from the table of {code_map.ARCHITECTURE}: {remove}"
    assert all(all(row) for row in rows)


def test_the_names_of_threads_are_read_from_all_that_start_them() -> None:
    names = {one.name for one in code_map.thread_names()}
    # Thread, PeriodicThread, ThreadPoolExecutor, Timer, and a class that passes the name on to one of them.
    assert {"heliograph-shared", "heliograph-sweeper", "heliograph-check", "Thread-*", "zenoh receiver"} <= names


# -- where is ...?


def answers() -> Iterator[tuple[str, list[str]]]:
    """Question -> the steps of its answer."""
    for heading in re.findall(r"^## (.+)$", documents.read(WHERE_IS), re.MULTILINE):
        text = " ".join(documents.section(WHERE_IS, heading).split())
        yield heading, re.split(r"(?:^| )\d\. ", text)[1:]


def test_ten_questions_are_answered_in_a_few_steps() -> None:
    counts = {question: len(steps) for question, steps in answers()}
    assert len(counts) == 10
    assert all(1 <= count <= STEPS_MAX for count in counts.values()), counts


@pytest.mark.parametrize(
    ("question", "steps"), list(answers()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_places_of_an_answer_exist(question: str, steps: list[str]) -> None:
    assert any("/" in step for step in steps), question
    for step in steps:
        spans = [span for span in re.findall(r"`([^`]+)`", step) if not span.startswith("./run ")]
        paths = [span for span in spans if "/" in span or span.endswith(".md")]
        assert paths or "](" in step or "./run " in step, f"no place in: {step}"
        for path in paths:
            assert (ROOT / path).is_file(), f"{WHERE_IS} names {path}, which does not exist: {step}"
        defined = {name for path in paths if path.endswith(".py") for name in _defined(path)}
        for name in sorted({*spans} - {*paths}):
            assert name in defined, f"{WHERE_IS}: {name} is not defined in {paths}: {step}"


def _defined(path: str) -> Iterator[str]:
    for node in ast.walk(code_map.trees()[path]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


# -- statistics


@pytest.mark.parametrize(
    "statistics",
    [
        nb_api.api.NbStatistics,
        nb_api.cache.local_cache.LocalCacheStatistics,
        nb_api.controller.statistics.ControllerStatistics,
        nb_api.coordination.election.ElectionStatistics,
        nb_api.coordination.discovery.RegistrationStatistics,
        nb_api.coordination.discovery.DirectoryStatistics,
        nb_api.fleet.FleetReporterStatistics,
        pubsub_api.publishing.multiproc.WorkerStatistics,
    ],
)
def test_every_statistic_of_the_database_side_is_explained(statistics: type) -> None:
    stated = documents.table(STATISTICS, statistics.__name__)
    assert [plain(row[0]) for row in stated] == list(fields_of(statistics)), f"{STATISTICS}, {statistics.__name__}"
    assert all(row[1] for row in stated)


def test_the_statistics_to_watch_are_few_and_exist() -> None:
    watched = documents.table(STATISTICS, "Watch these")
    assert len(watched) <= WATCHED_MAX
    explained = {
        plain(row[0])
        for page in documents.pages()
        for header, *rows in documents.tables(documents.prose(page))
        if header[0] == "Field"
        for row in rows
    }
    explained |= {name for names in explained for name in names.split(", ")}
    named = {name for row in watched for name in re.findall(r"`([\w.]+)`", row[0])}
    assert named - explained == set()


# -- plain English


VAGUE = re.compile(r"\b(?:whoever|somebody|anybody|everybody)\b", re.IGNORECASE)
"""Words that do not say which process, program or person is meant."""
GENERATED = {"docs/modules.md", "docs/options.md", "docs/architecture.md", "docs/glossary.md", "docs/README.md"}
"""Pages with lines that are taken from the code, or from the titles of decisions."""


def test_pages_say_which_process_is_meant() -> None:
    found = [
        f"{page}: {line.strip()}"
        for page in [*documents.pages(), pathlib.Path("CONTRIBUTING.md")]
        if str(page) not in GENERATED and not str(page).startswith(HISTORY)
        for line in re.sub(r"`[^`]*`|\"[^\"]*\"", "", documents.prose(page)).splitlines()
        if VAGUE.search(line)
    ]
    assert found == []


# -- names that are gone


def test_no_page_names_a_module_that_was_renamed() -> None:
    found = [
        f"{page}: {name}"
        for page in [*documents.pages(), pathlib.Path("CONTRIBUTING.md")]
        if not str(page).startswith(HISTORY)
        for name in OLD_NAMES.findall(documents.prose(page))
    ]
    assert found == []
