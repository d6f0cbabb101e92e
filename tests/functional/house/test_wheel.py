"""The distributions, not the checkout: what is in them, what type checkers see in the wheel, and that it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import entry_points, version
from typing import NamedTuple

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.timeout(600)

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")
TIMEOUT_S = 500.0
SETUPTOOLS_ALONE = (70, 1)
"""From here on setuptools can make a wheel without the package of that name."""

REVEALED = [
    "Created[Port] | Updated[Port] | Deleted[Port] | Resynced | Mismatched",
    "Port",
    "list[DbObject[Port]]",
    "str",
    "DbObject[Port] | None",
    "list[DbObject[Port]]",
    "Created[Port] | Updated[Port] | Deleted[Port] | Resynced | Mismatched",
    "bool",
    "Port",
    "list[DbObject[Port]]",
    "str",
    "DbObject[Port] | None",
    "DbObject[Port] | None",
    "Any",
    "DbObject[Any]",
    "Session",
]


class Built(NamedTuple):
    """The two distributions, and a Python environment into which the wheel was unpacked."""

    sdist: pathlib.Path
    wheel: pathlib.Path
    python: pathlib.Path


def run(arguments: list[str], directory: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(
        arguments, cwd=directory, env={**inherited, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip


def can_build() -> bool:
    if importlib.util.find_spec("setuptools") is None:
        return False
    release = tuple(int(part) for part in version("setuptools").split(".")[:2])
    return release >= SETUPTOOLS_ALONE or bool(entry_points(group="distutils.commands", name="bdist_wheel"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not can_build():
        pytest.skip("no wheel can be built: neither setuptools 70.1 nor the package wheel is installed")
    directory = tmp_path_factory.mktemp("distributions")
    source, out = directory / "source", directory / "out"
    source.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for entry in ROOT.iterdir():  # a copy: building leaves files behind
        if entry.name.startswith(".") or entry.name in ("build", "dist") or (entry / "pyvenv.cfg").exists():
            continue
        if entry.is_dir() and not entry.is_symlink() and not entry.name.endswith(".egg-info"):
            shutil.copytree(entry, source / entry.name, symlinks=True, ignore=unwanted)
        elif not entry.is_dir() or entry.is_symlink():
            shutil.copy2(entry, source / entry.name, follow_symlinks=False)
    out.mkdir()
    program = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    done = run([sys.executable, "-c", program], source)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    # Dependencies come from here, but not what is installed here for development: .pth files there are not followed.
    environment = directory / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin/python"
    paths = json.loads(
        run([str(python), "-c", "import json, site; print(json.dumps(site.getsitepackages()))"], out).stdout
    )
    zipfile.ZipFile(wheel).extractall(paths[0])
    here = [path for path in sys.path if path.endswith("site-packages")]
    (pathlib.Path(paths[0]) / "dependencies.pth").write_text("\n".join(here))
    return Built(sdist, wheel, python)


def test_the_wheel_is_complete(built: Built) -> None:
    names = {re.sub(r"^heliograph-[^/]*\.data/data/", "", name) for name in zipfile.ZipFile(built.wheel).namelist()}
    packages = {path.parent for path in ROOT.glob("*/py.typed")} - {ROOT / "drivers"}  # it is installed by another name
    wanted = {path.relative_to(ROOT) for package in packages for path in package.rglob("*.py")}
    wanted |= {(package / "py.typed").relative_to(ROOT) for package in packages}
    assert {str(path) for path in wanted} - names == set()
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} - {"share"} == {
        package.name for package in packages
    }
    data = {f"share/heliograph/{path.relative_to(ROOT / 'etc')}" for path in (ROOT / "etc").glob("*/*")}
    data |= {f"share/doc/heliograph/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.*")}
    data |= {f"share/doc/heliograph/examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    data = {name for name in data if "oslo-config-generator" not in name} | {"share/heliograph/heliograph.conf"}
    assert data - names == set()


def test_the_source_distribution_stands_for_the_checkout(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "run",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "MANIFEST.in",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
    }
    for folder in ("docs", "etc", "examples", "tests", "bench", "nb_api"):
        wanted |= {
            str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.*")
            if path.is_file() and "__pycache__" not in path.parts
        }  # fmt: skip
    assert wanted - names == set()


def test_an_index_would_take_them(built: Built) -> None:
    if importlib.util.find_spec("twine") is None:
        pytest.skip("twine is not installed")
    done = run([sys.executable, "-m", "twine", "check", "--strict", str(built.sdist), str(built.wheel)], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def marked() -> list[int]:
    """The lines of the program that are wrong on purpose."""
    return [number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong: " in line]


def test_what_mypy_sees(built: Built, tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    shutil.copy(PROGRAM, tmp_path / "program.py")
    options = [
        "--strict",
        "--config-file=",
        "--python-executable",
        str(built.python),
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    done = run([sys.executable, "-m", "mypy", *options, "program.py"], tmp_path)
    revealed = re.findall(r"Revealed type is \"(.*)\"", done.stdout)
    assert [re.sub(r"\b[a-z_]+\.", "", one) for one in revealed] == REVEALED, done.stdout + done.stderr
    assert [int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)] == marked(), done.stdout


def test_what_pyright_sees(built: Built, tmp_path: pathlib.Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed, which needs node")
    shutil.copy(PROGRAM, tmp_path / "program.py")
    done = run([pyright, "--outputjson", "--pythonpath", str(built.python), "program.py"], tmp_path)
    try:
        found = json.loads(done.stdout)["generalDiagnostics"]
    except json.JSONDecodeError:
        pytest.skip(f"pyright does not run here: {done.stdout}{done.stderr}")
    revealed = [
        match[1] for one in found if (match := re.fullmatch(r'Type of ".*" is "(.*)"', one["message"])) is not None
    ]
    assert [set(one.split(" | ")) for one in revealed] == [set(one.split(" | ")) for one in REVEALED]
    errors = [one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"]
    assert errors == marked(), done.stdout


def test_the_wheel_runs_beside_folders_of_the_user(built: Built, tmp_path: pathlib.Path) -> None:
    """The program has a package called drivers of its own."""
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers/__init__.py").write_text("OWN = True\n")
    done = run([str(built.python), "program.py", f"sqlite://{tmp_path}/objects.db"], tmp_path)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stdout + done.stderr
    done = run([str(built.python), "-c", "import drivers; print(drivers.OWN)"], tmp_path)
    assert done.stdout == "True\n"
    commands = "from heliograph.main import main; import sys; sys.exit(main(['drivers']))"
    done = run([str(built.python), "-c", commands], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
