"""Fixtures for tests of programs that use Heliograph; pytest loads them by itself where Heliograph is installed.

Heliograph is not imported before a test uses one of them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nb_api.testing.memory_system import MemoryBus, MemorySystem
    from nb_api.testing.virtual_time import VirtualTime


@pytest.fixture
def heliograph_bus() -> Iterator[MemoryBus]:
    """A bus in memory with faults to switch on: `lose`, `delay`, `cut`, `heal`."""
    from nb_api.testing.memory_system import MemoryBus

    with MemoryBus() as bus:
        yield bus


@pytest.fixture
def heliograph_system(tmp_path: pathlib.Path, heliograph_bus: MemoryBus) -> Iterator[MemorySystem]:
    """A database on that bus; makes a `writer`, a `cache`, a `controller`; `settle`, `advance`, `restart`."""
    from nb_api.testing.memory_system import MemorySystem

    with MemorySystem(tmp_path, heliograph_bus) as system:
        yield system


@pytest.fixture
def heliograph_time(heliograph_system: MemorySystem) -> VirtualTime:
    """The time of that system's controllers, which stands still until it is moved."""
    return heliograph_system.time
