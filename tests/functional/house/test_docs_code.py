"""The programs in the documentation and in ``examples`` run, and the driver that it writes passes the whole suite.

A block of Python is a program of its own; those that start Spark run in `./run chaos`, and in `tests.spark.test_pages`
always.  So that programs meet neither each other nor a server of the machine, ports and directories that the text names
are replaced: see `private`.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests.helpers import documents, warm_processes
from tests.helpers.documents import Block
from tests.helpers.paths import ROOT
from tests.helpers.servers import RedisServer, free_port
from tests.spark.small_java import SMALL_JAVA

RUN_TIMEOUT_S = 500.0
"""Far more than any of them takes: one starts Spark, and the machine may be busy."""
pytestmark = pytest.mark.timeout(600)

DRIVER_FILES = ("unixgram.py", "test_unixgram.py", "uses unixgram.py")
TUTORIAL_FILE = "controller.py"
"""`tests.functional.house.test_tutorial` runs it."""
OFFLINE_COMMANDS = ("heliograph drivers", "heliograph decode")
"""Commands that need no bus, so that they can be run.  `tests.unit.house.test_docs` shows that all others are
understood."""

EXAMPLES = {
    "publish_and_subscribe.py": "10 events in",
    "follow_with_resync.py": "the copy equals the table",
    "asyncio_subscriber.py": "has version 5",
    "standalone_cache.py": "has version 5",
    "controller.py": "host-1 knows the networks ['n7']",
    "forked_workers.py": "100 events of 4 workers",
    "shared_work.py": "40 jobs done",
    "reconcile_flows.py": "2 flows as wanted",
    "reconcile_flows_aio.py": "99 flows as wanted",
    "api_workers.py": "100 ports of 4 workers",
    "dragonflow_before.py": "4 flows: ['p0', 'p1', 'p3', 'p4']",
    "dragonflow_after.py": "4 flows: ['p0', 'p1', 'p3', 'p4']",
}
"""Example -> what it prints when all went well."""


def private(text: str, request: pytest.FixtureRequest, directory: pathlib.Path) -> str:
    """The text with places that nobody else uses."""
    for port in ("8866", "8870"):
        text = text.replace(port, str(free_port()))
    if "6379" in text:
        server: RedisServer = request.getfixturevalue("redis_server")
        text = text.replace("6379", str(server.port))
    return text.replace("/run/unixgram", f"{directory}/bus").replace("sqlite:///tmp/", f"sqlite://{directory}/")


def environment_in(directory: pathlib.Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(directory),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "JDK_JAVA_OPTIONS": SMALL_JAVA,
    }


def run(arguments: list[str], directory: pathlib.Path) -> str:
    """Run a program to its end in a directory that is also on its import path; return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory, env=environment_in(directory), capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def run_program(program: pathlib.Path, directory: pathlib.Path, *arguments: str) -> str:
    """The same for a program of one file, with what is not ours imported already."""
    return warm_processes.run_program(
        program, *arguments, directory=directory, environment=environment_in(directory), timeout_s=RUN_TIMEOUT_S
    )


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=[pytest.mark.chaos] if block.starts_spark else [], id=str(block))
        for block in documents.blocks("python")
        if block.title not in (*DRIVER_FILES, TUTORIAL_FILE)
    ],
)
def test_program(block: Block, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(private(block.text, request, tmp_path))
    run_program(program, tmp_path)


@pytest.mark.parametrize(("name", "expected"), EXAMPLES.items())
def test_example(name: str, expected: str, tmp_path: pathlib.Path) -> None:
    url = [f"zmq://127.0.0.1:{free_port()}"] if "URL" in documents.read(f"examples/{name}") else []
    assert expected in run_program(ROOT / "examples" / name, tmp_path, *url)


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def offline_commands() -> list[str]:
    lines = {line for block in documents.blocks("sh") for line in block.text.splitlines()}
    return sorted(line for line in lines if line.startswith(OFFLINE_COMMANDS))


@pytest.mark.parametrize("command", offline_commands())
def test_command(command: str, tmp_path: pathlib.Path) -> None:
    (frame,) = documents.blocks("hex")
    digits = "".join(re.split(r"\s{2,}", line)[0] for line in frame.text.splitlines())
    (tmp_path / "frame.txt").write_text(digits)
    (tmp_path / "capture.bin").write_bytes(bytes.fromhex(digits))
    assert run(["-m", *shlex.split(command)], tmp_path)


@pytest.fixture
def installed_driver(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    """The driver of docs/writing-a-driver.md, installed in a directory with the entry points that the page states."""
    for name in DRIVER_FILES:
        parts = [block.text for block in documents.blocks("python") if block.title == name]
        assert parts, name
        (tmp_path / name.replace("uses ", "use_")).write_text(private("\n\n".join(parts), request, tmp_path))
    (stated,) = [block for block in documents.blocks("ini") if "[options.entry_points]" in block.text]
    setup = configparser.ConfigParser(delimiters=("=",))
    setup.read_string(stated.text)
    info = tmp_path / "unixgram-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unixgram\nVersion: 1.0\n")
    groups = [f"[{group}]\n{entries.strip()}\n" for group, entries in setup["options.entry_points"].items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return tmp_path


def test_the_driver_of_the_documentation_passes_the_conformance_suite(installed_driver: pathlib.Path) -> None:
    printed = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_unixgram.py"], installed_driver)
    passed = re.search(r"(\d+) passed", printed)
    assert passed
    assert int(passed[1]) > 50, printed
    assert "failed" not in printed


def test_the_driver_of_the_documentation_is_used_like_a_shipped_one(installed_driver: pathlib.Path) -> None:
    assert "tenant-7/port" in run(["use_unixgram.py"], installed_driver)
    assert "unixgram" in run(["-m", "heliograph", "drivers"], installed_driver)
