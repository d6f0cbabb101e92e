"""How tests are spread over processes.

Those of one file stay together, in order, because they share servers; those that use the Spark session of the tests do
because Java takes as long as many of them, and those that are about the code itself because they read all of it.  What
takes longest begins first: begun last, it would keep one process busy while the others have nothing left.  How long
each takes is in ``seconds.json``, which ``./run test --measure`` writes again.
"""

from __future__ import annotations

import collections
import json
import pathlib

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK_STREAMS = "streams of Spark"
SPARK_REST = "rest of Spark"
_SPARK_STREAMS = tuple(f"tests/spark/test_{name}.py" for name in ("group_source", "job_kills", "kills", "source_sink"))

CODE = "the code itself"
_CODE = tuple(f"tests/unit/house/test_{name}.py" for name in ("code_pages", "docs", "import_rules", "tidy"))

_FILE = pathlib.Path(__file__).with_name("seconds.json")
_LEAST_S = 5
"""What takes less may run whenever a process has nothing else."""
SECONDS: dict[str, int] = json.loads(_FILE.read_text())
"""By `unit_of`, how long each of those that take longest takes while others run beside it."""


def unit_of(nodeid: str) -> str:
    """What runs in one process: a file, those that share the syntax trees of a process, or one of two halves of those
    that share its Spark session."""
    file = nodeid.partition("::")[0]
    if file in _CODE:
        return CODE
    if not file.startswith("tests/spark/"):
        return file
    return SPARK_STREAMS if file in _SPARK_STREAMS else SPARK_REST


def place_of(nodeid: str) -> int:
    """Tests are handed out in this order."""
    return -SECONDS.get(unit_of(nodeid), 0)


class Measurement:
    """A plug-in for pytest: writes how long everything took."""

    def __init__(self) -> None:
        self._seconds: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[unit_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        longest = {unit: round(taken) for unit, taken in self._seconds.most_common() if taken >= _LEAST_S}
        _FILE.write_text(json.dumps(longest, indent=1) + "\n")


class UnitScheduling(LoadScopeScheduling):
    """Gives out unit by unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
