"""Fixtures of the suite, and what a driver's author may override."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from durable_log.loading import open_log
from durable_log.log_api import LogApi

_names = itertools.count(1)

SHARDS = 4

NewUrl = Callable[[], str]


class LogConformanceBase:
    """Configuration of a run."""

    url: ClassVar[str]
    """URL of a log, with ``{name}`` or ``{directory}`` or both, see the package."""

    @pytest.fixture
    def new_url(self, tmp_path: pathlib.Path) -> NewUrl:
        """A function that returns the URL of another empty log of `SHARDS` shards each time.

        Override it as a fixture when they must be made first.  Processes that the suite starts know nothing but a URL.
        """

        def new() -> str:
            name = f"h{os.getpid()}x{next(_names)}"
            address = self.url.format(name=name, directory=tmp_path)
            return f"{address}?shards={SHARDS}&segment_directory={tmp_path / name}"

        return new

    def open_log(self, url: str) -> LogApi:
        """The log under test.  Override it to set options."""
        return open_log(url)

    @pytest.fixture
    def log_url(self, new_url: NewUrl) -> str:
        return new_url()

    @pytest.fixture
    def log(self, log_url: str) -> Iterator[LogApi]:
        with contextlib.closing(self.open_log(log_url)) as log:
            yield log
