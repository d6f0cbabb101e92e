"""The documentation as a site, where what `./run docs` installs is there."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

pytest.importorskip("zensical", reason="zensical is not installed")


def test_the_site_has_no_link_that_leads_nowhere_and_asks_no_other_host(tmp_path: pathlib.Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list((tmp_path / "site").rglob("index.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        assert not re.search(r'(?:src|<link[^>]*href)="(?:https?:)?//', text), f"{page} asks another host"
        for target in re.findall(r'(?:href|src)="(?![a-z]+:|/|#|")([^"#?]*)', text):
            assert (page.parent / target).exists(), f"{page}: {target}"
