"""Collects each test file once for all processes of a run.

xdist has every process collect every file, which takes each of them seven seconds and hundreds of megabytes.  So a
process collects only files that no other process has begun with, and learns from the others which tests the rest has.
Such a test is a `NamedTest` until it is to run here: only then its file is collected here, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, SupportsIndex

import pytest

from tests.helpers import distribution, made_once

_SORTED_BY_EARLIER_RUNS = ("lf", "failedfirst", "newfirst", "stepwise")
"""Options that choose among all tests at once."""


def install(config: pytest.Config) -> None:
    """Share the work, when this is one of several processes and whole files are asked for."""
    if not hasattr(config, "workerinput") or any("::" in argument for argument in config.args):
        return
    if not any(getattr(config.option, name, False) for name in _SORTED_BY_EARLIER_RUNS):
        config.pluginmanager.register(SharedCollection(made_once.directory() / "collected"), "shared collection")


class NamedTest(pytest.Item):
    """A test of which only the name is known, or, where it stands for a file, not even that."""

    def runtest(self) -> None:
        raise NotImplementedError(f"{self.nodeid} was not collected here")


class SharedCollection:
    """A plug-in for pytest.  ``directory`` is the same for all processes of the run."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._collecting: pytest.Module | None = None
        self._collected: dict[pytest.Module, dict[str, pytest.Item]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Every file is found to have one test, which stands for all of them."""
        if not isinstance(collector, pytest.Module) or collector is self._collecting:
            return None
        return pytest.CollectReport(collector.nodeid, "passed", None, [NamedTest.from_parent(collector, name="all")])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """In place of files come their tests.  Other plug-ins choose and mark those of each file where they are
        collected."""
        if self._collecting is not None:
            return (yield)
        files = [item.getparent(pytest.Module) for item in items]
        items.clear()
        result = yield
        for file, names in zip(files, self._names(files), strict=True):
            items += [NamedTest.from_parent(file, name=name, nodeid=name) for name in names]
        items.sort(key=lambda item: distribution.place_of(item.nodeid))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        session.items = Tests(self, session.items)

    def resolve(self, item: pytest.Item) -> pytest.Item:
        """The test itself.  Collects its file, unless that was done."""
        if not isinstance(item, NamedTest):
            return item
        file = item.getparent(pytest.Module)
        assert file is not None
        return self._tests_of(file)[item.nodeid]

    def _names(self, files: list[Any]) -> list[list[str]]:
        """The names of the tests of each file, after all processes together have collected them."""
        with (self._directory / "claims").open("w") as claims:
            for number, file in enumerate(files):
                with contextlib.suppress(BlockingIOError):  # another process is at it
                    fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                    if not self._told(number).exists():
                        self._tell(number, list(self._tests_of(file)))
                    fcntl.lockf(claims, fcntl.LOCK_UN, 1, number)
            for number in range(len(files)):
                fcntl.lockf(claims, fcntl.LOCK_EX, 1, number)  # waits for the process that is at it
                fcntl.lockf(claims, fcntl.LOCK_UN, 1, number)
        return [json.loads(self._told(number).read_bytes()) for number in range(len(files))]

    def _told(self, number: int) -> pathlib.Path:
        return self._directory / f"{number}.json"

    def _tell(self, number: int, names: list[str]) -> None:
        new = self._directory / f"{number}.new"
        new.write_text(json.dumps(names))
        os.replace(new, self._told(number))

    def _tests_of(self, file: pytest.Module) -> dict[str, pytest.Item]:
        if file not in self._collected:
            self._collecting = file
            try:
                items = list(file.session.genitems(file))
                file.config.hook.pytest_collection_modifyitems(session=file.session, config=file.config, items=items)
            finally:
                self._collecting = None
            self._collected[file] = {item.nodeid: item for item in items}
        return self._collected[file]


class Tests(list[pytest.Item]):
    """The tests of a session.  Who takes one to run it gets the test itself."""

    __test__ = False

    def __init__(self, collection: SharedCollection, items: list[pytest.Item]) -> None:
        super().__init__(items)
        self._collection = collection

    def __getitem__(self, index: SupportsIndex) -> pytest.Item:  # type: ignore[override]
        return self._collection.resolve(super().__getitem__(index))
