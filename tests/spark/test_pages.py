"""The programs of the documentation that start Spark, in the session of the tests: another Java takes ten times as long
as what they do.  `./run chaos` runs them as they stand there, see `tests.functional.house.test_docs_code`."""

from __future__ import annotations

import pathlib

import pytest

from tests.helpers import documents
from tests.helpers.documents import Block

pytestmark = pytest.mark.usefixtures("one_session")


@pytest.mark.parametrize("block", [block for block in documents.blocks("python") if block.starts_spark], ids=str)
def test_program(block: Block, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})
