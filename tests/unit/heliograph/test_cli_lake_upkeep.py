"""``heliograph pipeline optimize`` and ``vacuum``: a table is put in order, and its rows stay the same."""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import pytest

pytest.importorskip("deltalake")

import deltalake
import pyarrow

from heliograph import exits, main
from spark_pipeline.lake import PARTITION, LakeTable
from spark_pipeline.schema import EVENT_COLUMNS

TYPES = {"int": pyarrow.int32(), "bigint": pyarrow.int64(), "string": pyarrow.string(), "binary": pyarrow.binary()}


@pytest.fixture
def lake(tmp_path: pathlib.Path) -> str:
    """A table of two days; the first has three small files."""
    path = str(tmp_path / "lake")
    LakeTable(path).current()
    for number, day in enumerate(["2026-05-01"] * 3 + ["2026-05-02"]):
        columns = {name: pyarrow.array([None], TYPES[kind]) for name, kind in EVENT_COLUMNS.items()}
        columns |= {"offset": pyarrow.array([number]), "log": pyarrow.array(["x"]), PARTITION: pyarrow.array([day])}
        deltalake.write_deltalake(path, pyarrow.table(columns), mode="append")
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.main(["pipeline", *arguments, "--json"]) == exits.OK
    return dict(json.loads(capsys.readouterr().out))


def offsets(lake: str) -> list[int]:
    return sorted(deltalake.DeltaTable(lake).to_pyarrow_table().column("offset").to_pylist())


def files(lake: str) -> set[str]:
    return {str(path.relative_to(lake)) for path in pathlib.Path(lake).glob(f"{PARTITION}=*/*.parquet")}


def test_small_files_are_put_together_and_leave_when_they_are_old(
    lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(lake)
    assert said(capsys, "optimize", "--lake", lake, "--dry-run") == {"small": 3}
    assert files(lake) == before
    assert said(capsys, "optimize", "--lake", lake) == {"replaced": 3, "written": 1}
    assert said(capsys, "optimize", "--lake", lake) == {"replaced": 0, "written": 0}
    assert offsets(lake) == [0, 1, 2, 3]
    assert before < files(lake), "older versions can still be read"

    stray = pathlib.Path(lake, f"{PARTITION}=2026-05-01", "of-a-killed-job.parquet")
    stray.write_bytes(b"")
    young = stray.with_name("of-a-running-job.parquet")
    young.write_bytes(b"")
    long_ago = time.time() - 40 * 86_400
    os.utime(stray, (long_ago, long_ago))
    listed = said(capsys, "vacuum", "--lake", lake, "--dry-run")
    assert [pathlib.Path(name).name for name in listed["files"]] == [stray.name]
    assert stray.exists()
    assert said(capsys, "vacuum", "--lake", lake)["removed"] is True
    assert not stray.exists()
    assert young.exists()
    assert offsets(lake) == [0, 1, 2, 3]


def test_what_is_no_table_or_too_short_is_refused(
    lake: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in ("optimize", "vacuum"):
        assert main.main(["pipeline", job, "--lake", str(tmp_path / "none")]) == exits.ENVIRONMENT
        assert "there is no table at" in capsys.readouterr().err
    assert main.main(["pipeline", "vacuum", "--lake", lake, "--older-than", "10m"]) == exits.USAGE
    assert "at least an hour" in capsys.readouterr().err
