"""What ``docs/durability.md`` says of the service is what the code says."""

from __future__ import annotations

import re

from durability_service.core.lifecycle import Phase
from durability_service.core.merging import Merge
from durability_service.core.namespaces import Kind
from tests import documents

PAGE = "docs/durability.md"


def column(header: str) -> list[str]:
    """The first column of the table that begins with this header."""
    (table,) = [rows for rows in documents.tables(documents.read(PAGE)) if rows[0][0] == header]
    return [row[0] for row in table[1:]]


def test_the_tables_are_those_of_the_code() -> None:
    assert column("Kind") == [kind.name for kind in Kind]
    assert column("Phase") == [
        "DISCOVER", "ELECT", "DORMANT", "INJECT", "FETCH", "COMPLETE", "MERGING", "TERMINATING",
    ]  # fmt: skip
    assert set(column("Phase")) == {phase.name for phase in Phase}
    assert column("Policy") == [merge.name for merge in Merge]


def test_every_invariant_that_the_oracle_looks_for_is_stated() -> None:
    source = documents.read("durability_service/testing/simulator/oracle.py")
    assert set(column("Invariant")) == set(re.findall(r'Violation\(\s*f?"([SL]\d+):', source))
