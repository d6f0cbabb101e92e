"""``heliograph fleet`` and ``heliograph top`` on real processes: one is frozen, one is old, one is deaf."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph import exits
from heliograph.main import main
from nb_api import fleet
from nb_api.loading import open_db
from tests.helpers.fleet_nodes import RIGHT, UNWELL, WRONG, FleetNode, many_controllers, written
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.paths import ROOT
from tests.helpers.waiting import wait_until


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    main([*words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def states(view: dict[str, Any]) -> dict[str, set[str]]:
    """Of the members that are not well: what is said of them."""
    return {one["name"]: set(one["states"]) for one in view["members"] if one["state"] != "ok"}


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    """A short name: that of a socket file has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="hg-") as name:
        yield pathlib.Path(name)


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.chaos)])
def test_of_many_controllers_the_frozen_the_old_and_the_deaf_one_are_shown(
    directory: pathlib.Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    with many_controllers(directory, count) as url:
        began = time.monotonic()

        def is_shown(*words: str) -> bool:
            view = shown(capsys, *words, "--db", url)
            bad = states(view)
            # Others may be late at times on a busy machine; in the end they are not.
            return bad.keys() == UNWELL.keys() and all(UNWELL[name] in found for name, found in bad.items())

        wait_until(lambda: is_shown("fleet"), what="fleet to show the three, and no other")
        with capsys.disabled():
            sys.stderr.write(f"fleet shows all three after {time.monotonic() - began:.1f} s\n")
        wait_until(lambda: is_shown("top", "--once"), what="top to show the three, and no other")
        view = shown(capsys, "fleet", "--db", url, "--expect", str(count + 1), "--limit", "1", "--role", "control*")
        assert (view["total"], view["selected"], view["missing"], len(view["members"])) == (count, count, 1, 1)


def test_a_deaf_copy_does_not_follow_the_database(directory: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, bus = sqlite_url(directory), f"zmq://{directory}/bus"
    with (
        open_nb(url, bus, **RIGHT) as nb,
        FleetNode(url, bus, "deaf-", **WRONG, cache={"bus_patience": 0.0}) as deaf,
        FleetNode(url, bus, "good-", **RIGHT) as good,
        written(nb),
    ):
        deaf.wait_ready()
        good.wait_ready()
        wait_until(
            lambda: "behind" in states(shown(capsys, "fleet", "--db", url)).get("deaf-0", ()),
            what="the deaf copy to be behind the database",
        )
        wait_until(
            lambda: "good-0" not in states(shown(capsys, "fleet", "--db", url)), what="the other copy to be well"
        )


def test_who_was_killed_is_silent_until_forgotten(directory: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = sqlite_url(directory)
    with contextlib.closing(open_db(url)) as db:
        killed = fleet.report(db, name="killed", interval_s=0.1)
        assert killed.wait_done(timeout_s=60)
        [(key, data)] = db.reports().items()
        killed.close()
        assert db.reports() == {}
        db.tell_report(key, data)
        with contextlib.closing(fleet.report(db, name="alive", interval_s=0.1)):
            wait_until(lambda: states(shown(capsys, "fleet", "--db", url)) == {"killed": {"silent"}})
            assert shown(capsys, "fleet", "--db", url, "--forget-silent", "--dry-run")["dry_run"] is True
            assert main(["fleet", "--db", url, "--forget-silent", "--yes"]) == exits.OK
            capsys.readouterr()
            wait_until(lambda: states(shown(capsys, "fleet", "--db", url)) == {})
            assert [one["name"] for one in shown(capsys, "fleet", "--db", url)["members"]] == ["alive"]


def test_what_is_shown_to_people(directory: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = sqlite_url(directory)
    with contextlib.closing(open_db(url)) as db:
        assert main(["fleet", "--db", url]) == exits.OK
        assert "--fleet" in capsys.readouterr().out
        with contextlib.closing(fleet.report(db, name="host-1/agent", program_release="7.1")) as told:
            assert told.wait_done(timeout_s=60)
            assert main(["fleet", "--db", url, "--watch", "0"]) == exits.OK
            text = capsys.readouterr().out
            assert "host-1/agent" in text
            assert "7.1" in text
            assert "1 member: 1 ok" in text
            assert main(["fleet", "--db", url, "--watch", "0", "--name", "other/*"]) == exits.OK
            assert "host-1/agent" not in capsys.readouterr().out
            assert main(["top", "--db", url, "--timeout", "0.1s", "--interval", "0.1s"]) == exits.OK
            assert "host-1/agent" in capsys.readouterr().out
            assert main(["fleet", "--db", url, "--state", "asleep"]) == exits.USAGE
            assert "there is no state 'asleep'" in capsys.readouterr().err


@pytest.mark.parametrize(("terminal", "is_screen"), [("xterm", True), ("dumb", False)])
def test_top_is_a_screen_on_a_terminal_that_can_show_one(
    directory: pathlib.Path, terminal: str, is_screen: bool
) -> None:
    url = sqlite_url(directory)
    with contextlib.closing(open_db(url)) as db, contextlib.closing(fleet.report(db, name="host-1/agent")) as told:
        assert told.wait_done(timeout_s=60)
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as screen:
            process = subprocess.Popen(
                [sys.executable, "-m", "heliograph", "top", "--db", url, "--interval", "0.1s", "--timeout", "30s"],
                stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
                env={**os.environ, "TERM": terminal, "COLUMNS": "200"},
            )  # fmt: skip
            os.close(theirs)
            try:
                shown = b""
                while b"host-1/agent" not in shown:
                    shown += screen.read(4096)
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(OSError):  # the terminal is gone when the process is
                    while part := screen.read(4096):
                        shown += part
                assert process.wait(60) == exits.OK
            finally:
                process.kill()
                process.wait()
    assert (b"\x1b[?1049h" in shown) is is_screen, "a screen of its own"
    assert (b"\x1b[?1049l" in shown) is is_screen, "and the one before it is back"
