"""Fixtures of the suite, and what the test class of a driver may override."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import pytest

from nb_api.db_api import DbApi, Write
from nb_api.loading import open_db

_numbers = itertools.count(1)

NewUrl = Callable[[], str]


class DbConformanceBase:
    """Configuration of a run."""

    url: ClassVar[str]
    """URL of a database, with ``{name}`` or ``{directory}`` or both, see the description of the package."""
    snapshot_objects: ClassVar[int] = 20_000
    """Number of objects in the large snapshot."""

    @pytest.fixture
    def new_url(self, tmp_path: pathlib.Path) -> NewUrl:
        """A function that returns the URL of another empty database at each call.

        Override this fixture when databases must be made first.  Processes that the suite starts are configured by
        this URL only.
        """
        return lambda: self.url.format(name=f"h{os.getpid()}x{next(_numbers)}", directory=tmp_path)

    def open_db(self, url: str) -> DbApi:
        """The database under test.  Override it to set options."""
        return open_db(url)

    @pytest.fixture
    def db_url(self, new_url: NewUrl) -> str:
        return new_url()

    @pytest.fixture
    def db(self, db_url: str) -> Iterator[DbApi]:
        with contextlib.closing(self.open_db(db_url)) as db:
            yield db


def apply_all(db: DbApi, writes: Iterable[Write]) -> list[int]:
    """Commit any number of writes in as few transactions as possible; returns their versions."""
    remaining, versions = iter(writes), list[int]()
    while portion := list(itertools.islice(remaining, db.writes_max)):
        versions += db.apply(portion)
    return versions
