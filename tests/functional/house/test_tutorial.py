"""docs/tutorial.md is done as a newcomer would do it: block by block, and what it shows must come."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.helpers import documents
from tests.helpers.paths import ROOT
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

PATIENCE_S = 120.0
PAGE = "docs/tutorial.md"
pytestmark = pytest.mark.timeout(400)


class Reader:
    """What is typed runs in one directory, with what was exported before."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._port = str(free_port())
        self._exports = ""
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        binaries = directory / "bin"
        binaries.mkdir()
        for name, words in (("heliograph", "-m heliograph"), ("python", "")):
            (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (binaries / name).chmod(0o755)
        self._environment["PATH"] = f"{binaries}{os.pathsep}{os.environ['PATH']}"

    def write(self, name: str, text: str) -> None:
        text = text.replace("8866", self._port).replace("/tmp/heliograph", f"{self._directory}/run")
        (self._directory / name).write_text(text.replace("sqlite:///tmp/", f"sqlite://{self._directory}/"))

    def type(self, text: str) -> str:
        """What it printed.  What it left in the background goes on."""
        if text.startswith("export "):
            self._exports += text
            return ""
        with (self._directory / "typed.log").open("w+") as log:
            done = subprocess.run(
                ["bash", "-ec", self._exports + text], cwd=self._directory, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            log.seek(0)
            printed = log.read()
        assert done.returncode == 0, f"{text}{printed}"
        return printed

    def shows(self, text: str, expected: str) -> bool:
        printed = self.type(text)
        return all(line in printed for line in expected.splitlines())

    def leave(self) -> None:
        for file in self._directory.glob("*.pid"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def reader(tmp_path: pathlib.Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    yield found
    found.leave()


def test_a_newcomer_gets_to_the_end(reader: Reader) -> None:
    blocks = [block for block in documents.blocks() if block.page == PAGE]
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.title in ("tutorial.conf", "controller.py"):
            reader.write(block.title, block.text)
        elif block.language == "bash":
            if following is not None and following.language == "text":
                expected = following.text
                wait_until(lambda: reader.shows(block.text, expected), PATIENCE_S, expected)  # noqa: B023  called here
            elif block.text.startswith("heliograph status"):
                wait_until(lambda: is_well(reader, block.text), PATIENCE_S, "the service")  # noqa: B023  called here
            else:
                reader.type(block.text)
        else:
            assert block.language in ("sh", "text")


def is_well(reader: Reader, text: str) -> bool:
    """A reader is slower than a test: the service is there by then."""
    try:
        reader.type(text)
    except AssertionError:
        return False
    return True
