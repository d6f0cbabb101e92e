"""No context and no variable of who runs the tests decides what a command does."""

from __future__ import annotations

import pathlib

import pytest

from heliograph.opening import targets


@pytest.fixture(autouse=True)
def config_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    for variable in targets.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    return home
