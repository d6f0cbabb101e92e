"""What tests about the code itself share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import workers
from tests.helpers import code_map, source_trees, warm_processes


@pytest.fixture(scope="module")
def warm_workers() -> Iterator[None]:
    """Processes of the benchmark begin with the product imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_SPAWN", warm_processes.CONTEXT)
        yield


@pytest.fixture(autouse=True, scope="package")
def _trees_are_forgotten() -> Iterator[None]:
    """No other test in this process needs them."""
    yield
    code_map.trees.cache_clear()
    source_trees.forget()
