"""What ``docs/durability.md`` says of the service is what the code says."""

from __future__ import annotations

import re

from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.keeping.lifecycle import Phase
from durability_service.core.namespaces import Kind
from tests.helpers import documents

PAGE = "docs/durability.md"


def table(header: str) -> list[list[str]]:
    """The rows of the table that begins with this header."""
    (found,) = [rows for rows in documents.tables(documents.read(PAGE)) if rows[0][0] == header]
    return [list(row) for row in found[1:]]


def column(header: str) -> list[str]:
    """The first column of that table."""
    return [row[0] for row in table(header)]


def test_the_tables_are_those_of_the_code() -> None:
    assert column("Kind") == [kind.name for kind in Kind]
    assert column("Phase") == [
        "DISCOVER", "ELECT", "DORMANT", "INJECT", "FETCH", "COMPLETE", "MERGING", "TERMINATING",
    ]  # fmt: skip
    assert set(column("Phase")) == {phase.name for phase in Phase}
    assert column("Policy") == [merge.name for merge in MergePolicy]


def test_every_invariant_is_looked_for_where_the_page_says() -> None:
    oracle = documents.read("durability_service/testing/simulator/oracle.py")
    checked = set(re.findall(r'"([SL]\d+)[":]', oracle))
    stated = {invariant: where for invariant, _, where in table("Invariant")}
    assert {invariant for invariant, where in stated.items() if "simulator" in where} == checked
    assert list(stated) == [f"S{number}" for number in range(1, 26)] + [f"L{number}" for number in range(1, 9)]
    folder = documents.ROOT / "tests" / "unit" / "durability_service"
    tests = "".join(path.read_text() for path in folder.glob("test_durability_*.py"))
    for where in stated.values():
        for name in re.findall(r"`(\w+)`", where):
            assert f"def {name}(" in tests
