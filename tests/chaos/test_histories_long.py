"""Databases that lose their history again and again while a writer goes on: copies follow, on bus and feed."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.helpers.followed import misfortunes
from tests.helpers.histories import DATABASES

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("HELIOGRAPH_MISFORTUNES", "100"))


@pytest.mark.parametrize("following", ["bus", "feed"])
@pytest.mark.parametrize("name", DATABASES)
def test_copies_survive_a_hundred_misfortunes(name: str, following: str, tmp_path: pathlib.Path) -> None:
    with DATABASES[name]() as database:
        database.new(tmp_path)
        misfortunes(database, following, rounds=ROUNDS, seed=ROUNDS)
