"""Variables of the environment, named contexts, and completion."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

from heliograph import exits, main
from heliograph.commands.setup.completion import candidates
from nb_api.loading import open_db
from tests.helpers.paths import ROOT

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def db_url(tmp_path: pathlib.Path) -> str:
    url = f"sqlite://{tmp_path}/objects.db"
    with contextlib.closing(open_db(url)) as db:
        db.create("port", "p1", 1, topic="t")
    return url


def test_the_environment_names_what_options_do_not(
    db_url: str, tmp_path: pathlib.Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_DB", db_url)
    assert main.main(["db", "list"]) == exits.OK
    assert capsys.readouterr() == ("port 1\n", "")
    assert main.main(["db", "list", "--db", f"sqlite://{tmp_path}/other.db"]) == exits.USAGE  # an option wins
    capsys.readouterr()
    monkeypatch.setenv("HELIOGRAPH_BUS", "carrier-pigeon://x")
    assert main.main(["subscribe", "#"]) == exits.USAGE
    assert "carrier-pigeon" in capsys.readouterr().err
    monkeypatch.delenv("HELIOGRAPH_BUS")
    monkeypatch.setenv("HELIOGRAPH_CONFIG", f"{tmp_path}/a.conf:{tmp_path}/b.conf")
    assert main.main(["subscribe", "#"]) == exits.USAGE
    assert "a.conf" in capsys.readouterr().err
    monkeypatch.setenv("HELIOGRAPH_LOG", f"sqlite://{tmp_path}/typo.db")
    monkeypatch.delenv("HELIOGRAPH_CONFIG")
    assert main.main(["log", "info"]) == exits.USAGE
    assert "typo.db" in capsys.readouterr().err


def test_the_file_of_the_host_is_read_when_nothing_is_said(
    db_url: str, tmp_path: pathlib.Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "heliograph.conf"
    monkeypatch.setattr("pubsub_api.opening.SYSTEM_FILE", file)
    assert main.main(["db", "list"]) == exits.USAGE  # there is none
    capsys.readouterr()
    file.write_text(f"[db]\nurl = {db_url}\n")
    assert main.main(["db", "list"]) == exits.OK
    assert capsys.readouterr() == ("port 1\n", f"heliograph db: --config-file {file}\n")
    assert main.main(["db", "list", "--db", f"sqlite://{tmp_path}/other.db"]) == exits.USAGE
    assert "other.db" in capsys.readouterr().err


def test_a_cache_has_a_log_behind_it_only_when_told(
    tmp_path: pathlib.Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_LOG", f"sqlite://{tmp_path}/typo.db")
    assert main.main(["cache", "--topics", "#", "--bus", "memory://behind", "--timeout", "0"]) == exits.OK


def test_a_bus_wins_over_the_file_and_the_file_still_counts(tmp_path: pathlib.Path, capsys: Captured) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text("[pubsub]\npub_sub_driver = redis\nhmac_key = short\n")
    assert main.main(["subscribe", "#", "--bus", "memory://x", "--config-file", str(file)]) == exits.USAGE
    assert "hmac_key" in capsys.readouterr().err


def test_a_context_is_used_and_named(
    db_url: str, tmp_path: pathlib.Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, config_home: pathlib.Path
) -> None:
    bus = "redis://me:secret@10.0.0.5:6379/0"
    assert main.main(["context", "add", "prod", "--db", db_url, "--bus", bus]) == exits.OK
    assert main.main(["context", "add", "lab", "--db", f"sqlite://{tmp_path}/lab.db"]) == exits.OK
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert f"* prod --bus redis://***@10.0.0.5:6379/0 --db {db_url}" in shown
    file = config_home / "heliograph" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main.main(["db", "list", "--context", "lab"]) == exits.USAGE
    assert "heliograph db: context lab: --db sqlite:" in capsys.readouterr().err
    assert main.main(["context", "add", "prod", "--db", db_url]) == exits.OK  # replaces it
    capsys.readouterr()
    assert main.main(["db", "list"]) == exits.OK
    assert capsys.readouterr() == ("port 1\n", f"heliograph db: context prod: --db {db_url}\n")
    monkeypatch.setenv("HELIOGRAPH_DB", f"sqlite://{tmp_path}/typo.db")  # wins over the context in use
    assert main.main(["db", "list"]) == exits.USAGE
    assert main.main(["db", "list", "--context", "prod"]) == exits.OK  # what is named wins over it
    monkeypatch.delenv("HELIOGRAPH_DB")
    assert main.main(["context", "use", "lab"]) == exits.OK
    capsys.readouterr()
    assert main.main(["context", "list", "--json"]) == exits.OK
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["name"], one["is_current"]) for one in found] == [("lab", True), ("prod", False)]
    assert main.main(["context", "remove", "lab"]) == exits.OK
    assert main.main(["context", "clear"]) == exits.OK


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["context", "use", "nowhere"], "there is no context 'nowhere'; there are: none"),
        (["context", "remove", "nowhere"], "there is no context 'nowhere'"),
        (["context", "add", "empty"], "needs at least one of"),
        (["context", "add", "", "--bus", "memory://a"], "'' is no name"),
        (["context", "add", "a", "--db", "objects.db"], "--db 'objects.db' is no URL: write driver://..."),
        (["context", "add", "a\nb", "--bus", "memory://a"], "'a\\nb' is no name"),
        (["db", "list", "--context", "nowhere"], "there is no context 'nowhere'"),
    ],
)
def test_wrong_contexts(words: list[str], reason: str, capsys: Captured) -> None:
    assert main.main(words) == exits.USAGE
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "", "[" * 100_000], ids=["list", "empty", "deep"])
def test_a_broken_file_of_contexts_is_named(capsys: Captured, config_home: pathlib.Path, text: str) -> None:
    (config_home / "heliograph").mkdir()
    (config_home / "heliograph" / "contexts.json").write_text(text)
    for words in (["db", "list"], ["context", "list"]):
        assert main.main(words) == exits.USAGE
        assert "contexts.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["publ"], ["publish", "publisher-service"]),
        (["h"], ["help"]),
        (["help", "sub"], ["subscribe"]),
        (["db", "s"], ["set", "snapshot"]),
        (["db", "set", "--exp"], ["--expected-version"]),
        (["drivers", "--log-level", "w"], ["warning"]),
        (["nonsense", "x"], []),
        (["publish", "--ur"], []),  # the former name is not offered
    ],
)
def test_completion(words: list[str], found: list[str]) -> None:
    assert candidates(words) == found


def test_completion_offers_every_command() -> None:
    assert {"publish", "db", "help"} <= set(candidates([""]))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_every_shell(shell: str, capsys: Captured, tmp_path: pathlib.Path) -> None:
    assert main.main(["completion", shell]) == exits.OK
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: pathlib.Path, capsys: Captured) -> None:
    assert main.main(["completion", "bash"]) == exits.OK
    program = tmp_path / "heliograph"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m heliograph "$@"\n')
    program.chmod(0o755)
    script = (
        f"PATH={tmp_path}:$PATH\n{capsys.readouterr().out}\n"
        'COMP_WORDS=(heliograph db s); COMP_CWORD=2; _heliograph; echo "${COMPREPLY[@]}"\n'
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "set snapshot\n"


def test_a_broken_file_of_contexts_stops_only_who_needs_it(
    db_url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, config_home: pathlib.Path
) -> None:
    file = config_home / "heliograph" / "contexts.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{")
    assert main.main(["db", "list", "--db", db_url]) == exits.OK
    out, err = capsys.readouterr()
    assert out == "port 1\n"
    assert f"no context is used: {file} cannot be read" in err
    assert main.main(["db", "list", "--db", db_url, "--context", "prod"]) == exits.USAGE
    assert main.main(["db", "list"]) == exits.USAGE
    assert str(file) in capsys.readouterr().err
    monkeypatch.setenv("HELIOGRAPH_DB", db_url)
    assert main.main(["db", "list"]) == exits.OK


def test_an_empty_file_is_no_database_and_stays_empty(tmp_path: pathlib.Path, capsys: Captured) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    assert main.main(["db", "list", "--db", f"sqlite://{file}"]) == exits.USAGE
    assert "there is no database" in capsys.readouterr().err
    assert file.stat().st_size == 0
    assert main.main(["db", "create", "port", "p1", "1", "--topic", "t", "--db", f"sqlite://{file}"]) == exits.OK
    assert main.main(["db", "list", "--db", f"sqlite://{file}"]) == exits.OK


def test_an_empty_file_is_no_log_and_stays_empty(tmp_path: pathlib.Path, capsys: Captured) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    assert main.main(["log", "info", "--log", f"sqlite://{file}"]) == exits.USAGE
    assert "there is no log" in capsys.readouterr().err
    assert file.stat().st_size == 0
