"""What tests about the code itself share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import code_map, source_trees


@pytest.fixture(autouse=True, scope="package")
def _trees_are_forgotten() -> Iterator[None]:
    """Nobody else in this process needs them."""
    yield
    code_map.trees.cache_clear()
    source_trees.forget()
