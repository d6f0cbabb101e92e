"""``./run``: what it promises about environments and arguments.

Python itself is replaced by a script that takes notes, so that nothing is installed and no verb does its real work.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from tests.helpers.paths import ROOT

PYTEST = "python -m pytest -m not chaos --numprocesses 6 --dist loadfile"
VERBS = ["demo", "test", "browser", "chaos", "bench", "lint", "genconfig"]

NOTE_TAKER = """#!/bin/sh
echo "$0 $*" >>"{notes}"
"""


class Checkout:
    """A copy of what ``run`` needs, with an environment whose programs only note how they were called."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = folder / "a checkout"
        self.venv = self.root / ".venv"
        self.notes = folder / "notes"
        (self.root / "pubsub_api").mkdir(parents=True)
        (self.root / "pubsub_api" / "__init__.py").touch()
        (self.root / ".ci").mkdir()
        for name in ("run", ".ci/run", "setup.cfg", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)

    def make_environment(self) -> None:
        (self.venv / "bin").mkdir(parents=True)
        for name in ("python", "heliograph"):
            program = self.venv / "bin" / name
            program.write_text(NOTE_TAKER.format(notes=self.notes))
            program.chmod(0o755)

    def run(
        self, *args: str, cwd: pathlib.Path | None = None, script: str = "run", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in ("HELIOGRAPH_VENV", "PYTHON")}
        return subprocess.run(
            [str(self.root / script), *args],
            cwd=cwd or self.root,
            env={**clean, **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[str]:
        """How the environment's programs were called since the last time, without their directory."""
        text = self.notes.read_text() if self.notes.exists() else ""
        self.notes.unlink(missing_ok=True)
        return [line.replace(f"{self.venv}/bin/", "") for line in text.splitlines()]


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    return Checkout(tmp_path)


def is_installation(call: str) -> bool:
    return call.startswith("python -m pip install")


@pytest.mark.parametrize("script", ["run", ".ci/run"])
def test_the_scripts_are_plain_shell(script: str) -> None:
    path = ROOT / script
    assert path.read_text().startswith("#!/bin/sh\n")
    assert os.access(path, os.X_OK)
    subprocess.run([shutil.which("dash") or "sh", "-n", str(path)], check=True, timeout=60)
    assert not re.search(r"\[\[|\bfunction \w|\blocal \w|\bsource \w|<<<", path.read_text()), "not POSIX"


@pytest.mark.parametrize("args", [(), ("help",), ("--help",)])
def test_help_lists_every_verb_and_makes_no_environment(checkout: Checkout, args: tuple[str, ...]) -> None:
    done = checkout.run(*args)
    assert done.returncode == 0
    assert [verb for verb in VERBS if not re.search(rf"^  {verb} ", done.stdout, re.MULTILINE)] == []
    assert not checkout.venv.exists()


def test_an_unknown_verb_is_refused_with_the_list(checkout: Checkout) -> None:
    done = checkout.run("frobnicate")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "unknown verb 'frobnicate'" in done.stderr
    assert "genconfig" in done.stderr


@pytest.mark.parametrize(
    ("verb", "extras", "expected"),
    [
        ("demo", "all", ["heliograph demo -x"]),
        ("test", "all,spark,test", [f"{PYTEST} -x"]),
        (
            "browser",
            "all,browser,test",
            [
                "python -m tests.helpers.chromium VENV",
                "python -m pytest tests/functional/heliograph/test_console_browser.py -x",
            ],
        ),
        ("chaos", "all,spark,test", ["python -m pytest -m chaos -x", "heliograph simulate --seeds 7"]),
        ("bench", "all,spark,bench", ["python -m bench -x"]),
        ("lint", "all,spark,test,lint", ["python -m ruff check -x", "python -m ruff format --check", "python -m mypy"]),
    ],
)
def test_a_verb_installs_what_it_needs_and_passes_arguments_on(
    checkout: Checkout, verb: str, extras: str, expected: list[str]
) -> None:
    checkout.make_environment()
    done = checkout.run(verb, "-x", HELIOGRAPH_CHAOS_SEEDS="7")
    assert done.returncode == 0, done.stderr
    installation, *work = checkout.calls()
    assert is_installation(installation)
    assert installation.endswith(f"{checkout.root}[{extras}]")
    assert [call.replace(str(checkout.venv), "VENV") for call in work] == expected


@pytest.mark.parametrize(
    ("broken", "status"),
    [("nothing", 0), ("chromium", 0), ("[all,browser,test]", 0), ("browser.py", 7), ("numprocesses", 7)],
)
def test_integration_fails_with_a_test_and_not_for_want_of_a_browser(
    checkout: Checkout, broken: str, status: int
) -> None:
    checkout.make_environment()
    with (checkout.venv / "bin" / "python").open("a") as program:
        program.write(f'case "$*" in *"{broken}"*) exit 7;; esac\n')
    done = checkout.run(script=".ci/run")
    assert done.returncode == status, done.stderr
    assert any("numprocesses" in call for call in checkout.calls())


def test_a_second_call_starts_at_once(checkout: Checkout) -> None:
    checkout.make_environment()
    checkout.run("test")
    checkout.calls()
    done = checkout.run("test")
    assert checkout.calls() == [PYTEST]
    assert done.stderr == ""


@pytest.mark.parametrize("change", ["setup.cfg", "pyproject.toml", "nb_api/__init__.py"])
def test_a_change_that_matters_installs_again(checkout: Checkout, change: str) -> None:
    checkout.make_environment()
    checkout.run("test")
    checkout.calls()
    file = checkout.root / change
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.write("\n# changed\n")
    checkout.run("test")
    assert is_installation(checkout.calls()[0])


def test_a_failed_installation_is_not_remembered(checkout: Checkout) -> None:
    checkout.make_environment()
    python = checkout.venv / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    done = checkout.run("test")
    assert done.returncode == 1
    assert "the installation failed" in done.stderr
    python.write_text(NOTE_TAKER.format(notes=checkout.notes))
    checkout.run("test")
    assert is_installation(checkout.calls()[0])


def test_it_works_from_any_directory(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    checkout.make_environment()
    done = checkout.run("test", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert checkout.calls()[-1] == PYTEST


def test_the_environment_can_be_elsewhere(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    checkout.make_environment()
    checkout.venv = checkout.venv.rename(tmp_path / "elsewhere")
    done = checkout.run("test", cwd=tmp_path, HELIOGRAPH_VENV="elsewhere")
    assert done.returncode == 0, done.stderr
    assert checkout.calls()[-1] == PYTEST


def test_a_directory_that_is_not_an_environment_is_left_alone(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("words")
    done = checkout.run("test", HELIOGRAPH_VENV=str(precious))
    assert done.returncode == 1
    assert "is not a Python environment" in done.stderr
    assert [path.name for path in precious.iterdir()] == ["thesis"]


def test_a_python_that_is_too_old_is_an_error_that_says_so(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = checkout.run("test", PYTHON=str(old))
    assert done.returncode == 1
    assert "install Python 3.10 or newer" in done.stderr
    assert not checkout.venv.exists()


@pytest.mark.parametrize(
    ("script", "status"), [("exit 1", 1), ('case "$*" in *mypy*) ;; *pip*) ;; *) exit 1 ;; esac', 1), ("exit 0", 0)]
)
def test_lint_runs_every_check_and_fails_when_one_does(checkout: Checkout, script: str, status: int) -> None:
    checkout.make_environment()
    checkout.run("lint")
    checkout.calls()
    (checkout.venv / "bin" / "python").write_text(NOTE_TAKER.format(notes=checkout.notes) + script + "\n")
    assert checkout.run("lint").returncode == status
    assert len(checkout.calls()) == 3
